//! Runs a workload's steps, which are not measured: they load keys, reset a server, or check
//! counts.

use std::io;
use std::net::SocketAddr;

use pantala_resp::value::Value;

use super::measure::Comparison;
use super::peers::{Peer, check_interrupted};
use super::workloads::{Step, Workload, expanded};
use crate::load;
use crate::load::control::{Control, Login, Target};
use crate::load::keys::Pattern;
use crate::load::plan::{Amount, CommandPlan, Plan};

/// Number of clients per thread that load the keys.
const FILL_CLIENTS: u32 = 10;
/// Pipeline of the clients that load the keys.
const FILL_PIPELINE: u32 = 30;

impl Comparison<'_> {
    /// Runs `steps` in order. Returns the number of operations that filled the server.
    pub(super) fn run_steps(&self, peer: &Peer, workload: &Workload, steps: &[Step]) -> io::Result<u64> {
        let keys = workload.numbers_at(self.setup.scale);
        let mut operations = 0;
        for step in steps {
            match *step {
                Step::Each(text) => operations += self.fill(&self.filling(peer, workload, text))?,
                Step::Every(numbers, text) => {
                    let amount = Amount::Shared(keys.div_ceil(numbers));
                    operations += self.fill(&Plan { amount, ..self.filling(peer, workload, text) })?;
                }
                Step::InOrder(text) => {
                    let plan = self.filling(peer, workload, text);
                    let pipeline = plan.pipeline * plan.clients;
                    operations += self.fill(&Plan { threads: 1, clients: 1, pipeline, ..plan })?;
                }
                Step::Once(text) => {
                    ask(peer.addresses[0], text)?;
                }
                Step::Count(text, each) => check_count(peer, text, keys * each)?,
            }
            check_interrupted(self.stop)?;
        }
        Ok(operations)
    }

    /// Returns a plan that runs `text` once for each of the workload's numbers
    /// ([`Workload::numbers`]).
    pub(super) fn filling(&self, peer: &Peer, workload: &Workload, text: &str) -> Plan {
        Plan {
            commands: vec![CommandPlan::new("fill", &expanded(text), Pattern::Parallel, 1)],
            hand_over: false,
            threads: self.setup.threads,
            clients: FILL_CLIENTS * self.setup.threads,
            pipeline: FILL_PIPELINE,
            amount: Amount::AllKeys,
            ..self.plan(peer, workload)
        }
    }

    /// Runs a plan to its end, and returns the number of its operations.
    pub(super) fn fill(&self, plan: &Plan) -> io::Result<u64> {
        let outcome = load::run(plan, self.stop, &mut ())?;
        check_interrupted(self.stop)?;
        match outcome.trouble() {
            Some(trouble) => Err(io::Error::other(trouble)),
            None => Ok(outcome.operations),
        }
    }
}

/// Sends one command and returns its reply. An error reply becomes an `Err`.
fn ask(address: SocketAddr, text: &str) -> io::Result<Value> {
    Control::open(&Target::Tcp(address), &Login::default())?.order(&text.split(' ').collect::<Vec<_>>())
}

/// Checks that the counts in the replies of all nodes add up to `expected`. Any other sum shows
/// that not every operation had its effect.
fn check_count(peer: &Peer, text: &str, expected: u64) -> io::Result<()> {
    let mut sum = 0;
    for address in &peer.addresses {
        let answer = ask(*address, text)?;
        sum += count_in(&answer).ok_or_else(|| io::Error::other(format!("{text} replied {answer:?}, not a number")))?;
    }
    if i128::from(sum) != i128::from(expected) {
        return Err(io::Error::other(format!("{text} says {sum}, not {expected}")));
    }
    Ok(())
}

/// Returns the count that a reply contains: the reply itself, or its first element.
fn count_in(answer: &Value) -> Option<i64> {
    match answer {
        Value::Integer(count) => Some(*count),
        Value::Array(elements) => match elements.first()? {
            Value::Integer(count) => Some(*count),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_numbers_or_first_elements() {
        let three = Value::Integer(3);
        assert_eq!(count_in(&three), Some(3));
        assert_eq!(count_in(&Value::Array(vec![three.clone(), Value::Null])), Some(3));
        assert_eq!(count_in(&Value::Array(vec![Value::Null, three])), None);
        assert_eq!((count_in(&Value::Array(Vec::new())), count_in(&Value::Simple(b"OK".to_vec()))), (None, None));
    }
}
