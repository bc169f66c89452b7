//! Keys whose names are given by their order.

use bytes::Bytes;

use super::{Client, PutOptions, SequentialPutResponse, TxnOptions};
use crate::api::{
    Compare, CompareOp, Consistency, Error, ErrorKind, KeyRange, PutRequest, RangeRequest, TxnOp,
    TxnOpResponse, TxnRequest,
};
use crate::client::GetOptions;

/// The suffix of a revision begins with less: it is a positive number of 63 bits.
const END: &str = "8";

impl Client {
    /// Writes a new key whose name is `prefix` and a suffix that the cluster orders: of two keys with
    /// this prefix that were made so, the one that was created later is the greater, if both exist
    /// when it is created, and also if its put began after the other was completed. No name is
    /// given twice.
    ///
    /// The suffix has the form *revision*`-`*number*, both of 16 hexadecimal digits, where the
    /// revision is one that was read shortly before, and the number is random. So the keys sort as
    /// they were created, and their create revisions say the same. Other keys below the prefix are
    /// ignored, unless they begin as such a suffix does and sort behind it.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::GetOptions;
    ///
    /// let first = client.put_sequential("log/", "started", None).await?;
    /// let second = client.put_sequential("log/", "ready", None).await?;
    /// assert!(first.key < second.key);
    /// let log = client.get("log/", Some(GetOptions::new().with_prefix())).await?;
    /// println!("{} lines, in their order", log.kvs.len());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]; [`ErrorKind::InvalidArgument`] if a key is in the way that was not made so.
    /// If others add keys there, it is repeated at once as often as they are
    /// faster, each time with the timeout of the options.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn put_sequential(
        &self,
        prefix: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        options: Option<PutOptions>,
    ) -> Result<SequentialPutResponse, Error> {
        let (prefix, value) = (prefix.as_ref(), value.into());
        let options = options.unwrap_or_default();
        let mut revision = self.revision_at(prefix, &options).await?;
        let behind = KeyRange::Until(suffixed(prefix, END));
        loop {
            let number = self.inner.router.random();
            let first = suffixed(prefix, &format!("{revision:016x}-"));
            let key = suffixed(&first, &format!("{number:016x}"));
            // One that was named at this revision or later exists already: this one comes after it.
            let is_last =
                Compare::version(first.clone(), CompareOp::Equal, 0).with_range(behind.clone());
            let next = TxnOp::Range(RangeRequest {
                key: first,
                range: behind.clone(),
                limit: 1,
                keys_only: true,
                ..RangeRequest::default()
            });
            let put = TxnOp::Put(PutRequest {
                key: key.clone(),
                value: value.clone(),
                prev_kv: false,
                ignore_value: options.ignore_value,
                ignore_lease: options.ignore_lease,
                lease: options.lease.clone(),
            });
            let txn = TxnRequest::new()
                .when([is_last])
                .and_then([put])
                .or_else([next]);
            let sent = TxnOptions {
                fences: options.fences.clone(),
                timeout: options.timeout,
                ..TxnOptions::default()
            };
            let done = self.txn(txn, Some(sent)).await?;
            if done.succeeded {
                return Ok(SequentialPutResponse {
                    header: done.header,
                    key,
                });
            }
            if let Some(TxnOpResponse::Range(next)) = done.responses.first()
                && let Some(other) = next.kvs.iter().find(|kv| !is_numbered(prefix, &kv.key))
            {
                return Err(in_the_way(&other.key));
            }
            revision = done.header.revision;
        }
    }

    /// The current revision, as read by who may write below `prefix`.
    async fn revision_at(&self, prefix: &[u8], options: &PutOptions) -> Result<i64, Error> {
        let mut read = GetOptions::new()
            .with_count_only()
            .with_consistency(Consistency::Linearizable);
        read.timeout = options.timeout;
        // A key of its own, which costs one look.
        let key = suffixed(prefix, "0");
        Ok(self.get(key, Some(read)).await?.header.revision)
    }
}

/// Whether a key was named by [`Client::put_sequential`].
fn is_numbered(prefix: &[u8], key: &[u8]) -> bool {
    let Some(suffix) = key.strip_prefix(prefix) else {
        return false;
    };
    let is_hex = |text: &[u8]| text.len() == 16 && text.iter().all(u8::is_ascii_hexdigit);
    let mut parts = suffix.split(|byte| *byte == b'-');
    parts.next().is_some_and(is_hex) && parts.next().is_some_and(is_hex) && parts.next().is_none()
}

fn in_the_way(key: &[u8]) -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        format!(
            "{} sorts behind the next key of this sequence and is none of it: give the sequence a prefix of its own",
            String::from_utf8_lossy(key)
        ),
    )
}

fn suffixed(prefix: &[u8], suffix: &str) -> Bytes {
    let mut key = prefix.to_vec();
    key.extend_from_slice(suffix.as_bytes());
    key.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_sequence_is_told_from_others() {
        let own = "log/0000000000000005-00000000000000aa";
        assert!(is_numbered(b"log/", own.as_bytes()));
        for other in [
            "log/",
            "log/0000000000000005",
            "log/0000000000000005-",
            "log/000000000000005-00000000000000aa",
            "log/0000000000000005-00000000000000aa-1",
            "log/000000000000000x-00000000000000aa",
            "logs/0000000000000005-00000000000000aa",
        ] {
            assert!(!is_numbered(b"log/", other.as_bytes()), "{other}");
        }
    }
}
