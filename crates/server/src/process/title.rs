//! The title of the process, as `ps` shows it.

use crate::config::{Settings, process_title};
use pantala_base::title::Title;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

/// The memory of the title, its current text, and two texts that the title may contain: the
/// program's name and the path of the configuration file.
struct Shown {
    title: Title,
    program: Vec<u8>,
    file: Vec<u8>,
    text: Vec<u8>,
}

static SHOWN: Mutex<Option<Shown>> = Mutex::new(None);

/// Sets the title, if the settings ask for one. The title overwrites the process's arguments. So
/// the caller must not use the arguments afterwards, and must not have started a thread yet. `file`
/// is the path of the configuration file, or empty.
pub fn show_title(settings: &Settings, file: &[u8]) {
    if settings.process.title_template.is_none() {
        return;
    }
    let arguments: Vec<_> = std::env::args_os().collect();
    let Some(title) = Title::claim(arguments.len()) else {
        return tracing::warn!("The title of the process can't be changed");
    };
    let program = arguments[0].as_bytes().to_vec();
    let shown = Shown { title, program, file: file.to_vec(), text: Vec::new() };
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
    update_title(settings);
}

/// Updates the title after the settings have changed.
pub fn update_title(settings: &Settings) {
    if let Some(shown) = &mut *SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
        && let Some(text) = process_title(settings, &shown.program, &shown.file)
        && text != shown.text
    {
        shown.title.set(&text);
        shown.text = text;
    }
}
