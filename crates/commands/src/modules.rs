//! `MODULE`: Redis's modules are libraries for its own program, so none can be loaded here.

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

use crate::help;

/// `MODULE LIST`: no modules.
pub fn list(_: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.array(0);
}

/// `MODULE HELP`.
pub fn help(_: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(reply, "MODULE", &["LIST", "    Return the loaded modules: there are none."]);
}
