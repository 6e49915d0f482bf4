//! Talking to the session that is measured.

use anyhow::bail;
use brood_api::SessionEvent;
use brood_api::session::Session;

use super::Run;
use crate::sandbox::command;

/// The tag of a warm template's own process.
const START_TAG: &str = "start";

/// A client of the session.
pub(super) struct Asked(Session);

impl Run<'_> {
    /// Joins the session that came with the template.
    pub(super) async fn join(&self, id: &str) -> anyhow::Result<Asked> {
        Ok(Asked(self.client.attach(id, START_TAG, false).await?))
    }

    /// Runs a command to its end, which must be good.
    pub(super) async fn succeed(&self, id: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let mut session = self.client.open_session(id, &command(arguments)).await?;
        match session.wait().await?.shell_code() {
            0 => Ok(()),
            code => bail!("{arguments:?} ended with {code} inside"),
        }
    }

    /// Starts a session in a sandbox without one, and waits until it answers.
    pub(super) async fn start(&self, id: &str) -> anyhow::Result<Asked> {
        let mut request = command(&["/bin/sh", "-c", &format!("exec {}", super::template::SESSION)]);
        request.stdin = true;
        let mut asked = Asked(self.client.open_session(id, &request).await?);
        asked.ask("1").await?;
        Ok(asked)
    }
}

impl Asked {
    /// The value of an expression.
    pub(super) async fn ask(&mut self, expression: &str) -> anyhow::Result<String> {
        self.0.writer().stdin(format!("{expression}\n").as_bytes()).await?;
        let mut answer = String::new();
        while !answer.ends_with('\n') {
            match self.0.next().await? {
                Some(SessionEvent::Output { bytes, .. }) => answer.push_str(&String::from_utf8_lossy(&bytes)),
                Some(SessionEvent::Started { .. }) => {}
                other => bail!("the session broke off at {answer:?}: {other:?}"),
            }
        }
        Ok(answer.trim_end().to_owned())
    }
}
