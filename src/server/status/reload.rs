//! Requests to reload the certificates, and what came of them.

use tokio::sync::{Notify, watch};

/// The result of the last reload that was requested.
#[derive(Debug, Default)]
pub(crate) struct ReloadReports(watch::Sender<ReloadReport>);

#[derive(Debug, Default)]
struct ReloadReport {
    times: u64,
    complaints: Vec<String>,
}

impl ReloadReports {
    /// Asks for a reload and waits until it has been made.
    ///
    /// # Errors
    /// What is wrong with the files, a sentence for each port; those in use stay in use.
    ///
    /// # Cancel safety
    /// Safe; what was asked for is done all the same.
    pub(crate) async fn ask(&self, asked: &Notify) -> Result<(), Vec<String>> {
        let mut reports = self.0.subscribe();
        let before = reports.borrow_and_update().times;
        asked.notify_one();
        let Ok(now) = reports.wait_for(|now| now.times > before).await else {
            return Err(vec!["this node is stopping".to_owned()]);
        };
        match now.complaints.is_empty() {
            true => Ok(()),
            false => Err(now.complaints.clone()),
        }
    }

    /// Reports a reload, with what was wrong.
    pub(crate) fn report(&self, complaints: Vec<String>) {
        self.0.send_modify(|last| {
            last.times += 1;
            last.complaints = complaints;
        });
    }
}
