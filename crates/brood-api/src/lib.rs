//! The native interface of the daemon: its types, its process protocol and a client.
//!
//! [`Client`] speaks HTTP/1.1 over the daemon's unix socket and keeps its connections open between
//! requests. A [`Session`] is one such connection turned, by an HTTP upgrade, into a duplex stream of
//! [frames](frame): it runs one process after the other, with standard streams, signals and the
//! terminal's size travelling both ways under back-pressure.
//!
//! ```no_run
//! # async fn example() -> Result<(), brood_api::ApiError> {
//! use brood_api::{Client, SessionEvent};
//! use brood_sandbox::model::ProcessRequest;
//!
//! let client = Client::new("/run/brood/brood.sock");
//! let request: ProcessRequest = serde_json::from_str(r#"{"arguments": ["uname", "-a"]}"#)?;
//! let mut session = client.open_session("mysandbox", &request).await?;
//! while let Some(event) = session.next().await? {
//!     if let SessionEvent::Output { bytes, .. } = event {
//!         print!("{}", String::from_utf8_lossy(&bytes));
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What this crate must never know: how a sandbox is made, and how anything is shown to a person.
#![forbid(unsafe_code)]

pub mod client;
mod connection;
pub mod error;
pub mod frame;
pub mod session;
pub mod types;

pub use client::Client;
pub use error::{ApiError, ErrorBody};
pub use session::{Session, SessionEvent, SessionWriter};
