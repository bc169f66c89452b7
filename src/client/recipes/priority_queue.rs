//! Queues whose items have priorities.

use bytes::Bytes;

use super::queue::Queue;
use crate::api::Error;
use crate::client::Client;

/// A queue whose items are taken by priority, the lowest number first, and in the order of a
/// [`Queue`] within a priority. It keeps the promises of a [`Queue`], with the same limits.
///
/// Keys have the form *name*`/`*priority*`-`*revision*`-`*number*. An item of a lower number that is
/// put while others wait is taken next; so items of high numbers may wait for as long as there are
/// others.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::PriorityQueue;
///
/// let queue = PriorityQueue::new(&client, "alerts");
/// queue.put(5, "the disk is three quarters full").await?;
/// queue.put(1, "the disk is full").await?;
/// println!("{:?}", queue.take().await?); // The one of priority 1.
/// println!("{:?}", queue.try_take().await?);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct PriorityQueue {
    queue: Queue,
}

impl PriorityQueue {
    /// The queue `name`, which is none of another kind. Sends no request.
    pub fn new(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self {
            queue: Queue::new(client, name),
        }
    }

    /// Adds an item, behind all others of its priority.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn put(&self, priority: u32, value: impl Into<Bytes>) -> Result<(), Error> {
        let rank = format!("{priority:08x}-");
        self.queue.put_behind(&rank, value.into()).await
    }

    /// Takes the first item of the lowest number, if there is any item; as [`Queue::try_take`].
    ///
    /// # Errors
    /// As [`Queue::try_take`].
    ///
    /// # Cancel safety
    /// As [`Queue::try_take`].
    pub async fn try_take(&self) -> Result<Option<Bytes>, Error> {
        self.queue.try_take().await
    }

    /// Takes the first item of the lowest number, and waits for one if there is none; as
    /// [`Queue::take`].
    ///
    /// # Errors
    /// As [`Queue::take`].
    ///
    /// # Cancel safety
    /// As [`Queue::take`].
    pub async fn take(&self) -> Result<Bytes, Error> {
        self.queue.take().await
    }
}
