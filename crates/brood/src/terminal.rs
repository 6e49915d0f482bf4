//! The local terminal: raw while a tool call has it, and back as it was on every way out.

use std::io::{self, IsTerminal as _};
use std::sync::Mutex;

use brood_sandbox::model::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal's modes from before, for the panic hook, which has no guard at hand.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Keeps the terminal on standard input raw; dropping it restores the terminal.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Makes the terminal raw, unless standard input is none.
    ///
    /// # Errors
    /// When the terminal refuses.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(before);
        install_panic_hook();
        // Draining, not flushing: what was typed ahead is meant for the command.
        tcsetattr(&stdin, OptionalActions::Drain, &raw)?;
        Ok(Some(Self(())))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    if let Some(before) = before {
        // A terminal that is gone needs no restoring.
        tcsetattr(io::stdin(), OptionalActions::Drain, &before).unwrap_or(());
    }
}

fn install_panic_hook() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        previous(panic);
    }));
}

/// The size of the terminal on standard output, or on standard input.
pub fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin())).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some(TerminalSize { columns: size.ws_col, rows: size.ws_row })
}
