//! A validated load, built from options or from a named workload.

use std::time::Duration;

use serde_json::{Value, json};

use super::control::{Login, Target};
use super::data::Sizes;
use super::keys::{Pattern, Range};
use super::template::Template;

/// One command of a load.
#[derive(Clone, Debug)]
pub(crate) struct CommandPlan {
    /// Name of the command in reports.
    pub(crate) name: String,
    /// The words of the command, with placeholders.
    pub(crate) words: Vec<Vec<u8>>,
    pub(crate) pattern: Pattern,
    /// Number of consecutive operations of the command before the turn of the next command.
    pub(crate) weight: u32,
}

impl CommandPlan {
    /// Creates the plan of one command. `text` is split at spaces.
    pub(crate) fn new(name: &str, text: &str, pattern: Pattern, weight: u32) -> Self {
        let words = text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        Self { name: name.to_owned(), words, pattern, weight }
    }
}

/// The length of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// This many operations by each client.
    Requests(u64),
    /// As many operations by each client as the range has keys. If the patterns of all commands
    /// divide the keys among the clients, as many operations as the client's part has keys.
    AllKeys,
    /// This many operations by all clients together.
    Shared(u64),
    Time(Duration),
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) login: Login,
    pub(crate) threads: u32,
    /// Number of clients of all threads together.
    pub(crate) clients: u32,
    /// Maximum number of operations in flight on a connection.
    pub(crate) pipeline: u32,
    pub(crate) commands: Vec<CommandPlan>,
    /// Whether to measure hand-overs (deliveries of pushed elements to blocked clients) instead of
    /// the commands. All clients then block on a list, and one additional client pushes `pipeline`
    /// elements at a time. Requires one thread and a time limit.
    pub(crate) hand_over: bool,
    pub(crate) prefix: String,
    pub(crate) range: Range,
    pub(crate) sizes: Sizes,
    pub(crate) random_data: bool,
    pub(crate) expiry_seconds: (u64, u64),
    pub(crate) amount: Amount,
    /// Number of operations per second, of all clients together.
    pub(crate) rate_per_s: Option<u64>,
    pub(crate) cluster: bool,
    pub(crate) distinct_client_seed: bool,
    pub(crate) seed: u64,
    /// The CPUs to which the threads are bound, in turn. If empty, the kernel chooses.
    pub(crate) cpus: Vec<usize>,
    /// Maximum time without any reply, after which the run fails.
    pub(crate) stall_max: Duration,
}

impl Plan {
    /// Returns the templates of the commands, in the order of the commands.
    pub(crate) fn templates(&self) -> Result<Vec<Template>, String> {
        let compile = |command: &CommandPlan| {
            let template = Template::compile(&command.words, self.prefix.as_bytes())
                .map_err(|why| format!("command '{}': {why}", command.name))?;
            if self.cluster && (template.keys > 1 || template.replies > 1) {
                return Err(format!(
                    "command '{}': in cluster mode an operation is one request with one __key__, whose slot decides the node",
                    command.name
                ));
            }
            Ok(template)
        };
        self.commands.iter().map(compile).collect()
    }

    /// Returns the number of operations of the client `client`, or `None` if the load has a time
    /// limit.
    pub(crate) fn requests_of(&self, client: u64) -> Option<u64> {
        match self.amount {
            Amount::Requests(requests) => Some(requests),
            Amount::Time(_) => None,
            Amount::Shared(all) => {
                let clients = u64::from(self.clients);
                Some(all / clients + u64::from(client < all % clients))
            }
            Amount::AllKeys => {
                let (clients, keys) = (u64::from(self.clients), self.range.count());
                if self.commands.iter().any(|command| command.pattern != Pattern::Parallel) {
                    return Some(keys);
                }
                if keys < clients {
                    // There are fewer keys than clients. The first clients draw one key each, and
                    // the other clients none.
                    return Some(u64::from(client < keys));
                }
                let (first, last) = self.range.part(client, clients);
                Some(last - first + 1)
            }
        }
    }

    /// Returns the number of operations of the whole run, or `None` if the load has a time limit.
    pub(super) fn requests(&self) -> Option<u64> {
        (0..u64::from(self.clients)).try_fold(0u64, |sum, client| Some(sum.saturating_add(self.requests_of(client)?)))
    }

    /// Describes the plan for a report, without the password.
    pub(super) fn described(&self) -> Value {
        let commands: Vec<Value> = self
            .commands
            .iter()
            .map(|command| {
                let words: Vec<_> = command.words.iter().map(|word| String::from_utf8_lossy(word)).collect();
                json!({"name": command.name, "words": words, "key_pattern": command.pattern.to_string(), "ratio": command.weight})
            })
            .collect();
        let (requests_of_each, seconds) = match self.amount {
            Amount::Requests(requests) => (Some(json!(requests)), None),
            Amount::AllKeys => (Some(json!("allkeys")), None),
            Amount::Shared(all) => (Some(json!(format!("{all} shared out"))), None),
            Amount::Time(time) => (None, Some(time.as_secs())),
        };
        json!({
            "target": self.target.to_string(),
            "user": self.login.user,
            "database": self.login.database,
            "threads": self.threads,
            "clients": self.clients,
            "pipeline": self.pipeline,
            "commands": commands,
            "key_prefix": self.prefix,
            "key_minimum": self.range.minimum,
            "key_maximum": self.range.maximum,
            "key_median": self.range.median,
            "key_stddev": self.range.stddev,
            "zipf_exponent": self.range.zipf_exponent,
            "data_bytes_min": self.sizes.minimum,
            "data_bytes_max": self.sizes.maximum,
            "random_data": self.random_data,
            "expiry_s": [self.expiry_seconds.0, self.expiry_seconds.1],
            "requests_of_each": requests_of_each,
            "seconds": seconds,
            "rate_per_s": self.rate_per_s,
            "cluster_mode": self.cluster,
            "distinct_client_seed": self.distinct_client_seed,
            "seed": self.seed,
            "cpus": self.cpus,
        })
    }
}
