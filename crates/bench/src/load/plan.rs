//! A load, checked: what options or a named workload come to.

use std::time::Duration;

use super::control::{Login, Target};
use super::data::Sizes;
use super::keys::{Pattern, Range};
use super::template::Template;

/// One command of a load.
#[derive(Clone, Debug)]
pub(crate) struct CommandPlan {
    /// As reports call it.
    pub(crate) name: String,
    /// With placeholders.
    pub(crate) words: Vec<Vec<u8>>,
    pub(crate) pattern: Pattern,
    /// Operations of it in a row before it is the next command's turn.
    pub(crate) weight: u32,
}

impl CommandPlan {
    /// `text` split at spaces.
    pub(crate) fn new(name: &str, text: &str, pattern: Pattern, weight: u32) -> Self {
        let words = text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        Self { name: name.to_owned(), words, pattern, weight }
    }
}

/// How long a load lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// Operations of each client.
    Requests(u64),
    /// As many as the range has keys, shared out among the clients.
    AllKeys,
    Time(Duration),
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) login: Login,
    pub(crate) threads: u32,
    /// Of all threads.
    pub(crate) clients: u32,
    /// Requests that a connection has on their way at most.
    pub(crate) pipeline: u32,
    pub(crate) commands: Vec<CommandPlan>,
    pub(crate) prefix: String,
    pub(crate) range: Range,
    pub(crate) sizes: Sizes,
    pub(crate) random_data: bool,
    pub(crate) expiry_seconds: (u64, u64),
    pub(crate) amount: Amount,
    /// Operations per second of each client.
    pub(crate) rate_per_s: Option<u64>,
    pub(crate) cluster: bool,
    pub(crate) distinct_client_seed: bool,
    pub(crate) seed: u64,
    /// CPUs that the threads run on, in turn; empty leaves it to the kernel.
    pub(crate) cpus: Vec<usize>,
    /// Without any answer for this long, the server counts as dead.
    pub(crate) stall_max: Duration,
}

impl Plan {
    /// The commands' templates, in their order.
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

    /// Operations of client `client`; `None` where time decides.
    pub(crate) fn requests_of(&self, client: u64) -> Option<u64> {
        match self.amount {
            Amount::Requests(requests) => Some(requests),
            Amount::Time(_) => None,
            Amount::AllKeys => {
                let (clients, keys) = (u64::from(self.clients), self.range.count());
                if self.commands.iter().any(|command| command.pattern == Pattern::Parallel) && keys >= clients {
                    let (first, last) = self.range.part(client, clients);
                    return Some(last - first + 1);
                }
                Some(keys / clients + u64::from(client < keys % clients))
            }
        }
    }
}
