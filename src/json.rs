//! Values that are JSON, read and written as types of the program (feature `json`).

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{Error, ErrorKind};
use crate::client::{Client, GetOptions, PutOptions, PutResponse};

impl Client {
    /// Reads the value of a key as JSON; `None` if there is no such key. With options that select a range, the
    /// first key that they find.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Settings {
    ///     color: String,
    ///     size: u32,
    /// }
    ///
    /// let settings = Settings { color: "blue".to_owned(), size: 7 };
    /// client.put_json("settings", &settings, None).await?;
    /// let found: Option<Settings> = client.get_json("settings", None).await?;
    /// assert_eq!(found.map(|settings| settings.size), Some(7));
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`]; and [`ErrorKind::InvalidArgument`] if the value is not JSON, or not that of a `T`.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get_json<T: DeserializeOwned>(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<GetOptions>,
    ) -> Result<Option<T>, Error> {
        let found = self.get(key, options).await?;
        let read = found.kv().map(|kv| {
            serde_json::from_slice(&kv.value).map_err(|error| {
                Error::not_applied(
                    ErrorKind::InvalidArgument,
                    format!(
                        "the value of {:?} is not the JSON of a {}: {error}",
                        String::from_utf8_lossy(&kv.key),
                        std::any::type_name::<T>()
                    ),
                )
            })
        });
        read.transpose()
    }

    /// Writes a key whose value is `value` as JSON.
    ///
    /// # Errors
    /// As [`Client::put`]; and [`ErrorKind::InvalidArgument`], with nothing written, if `value` cannot be JSON: a
    /// map whose keys are no strings, say.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn put_json<T: Serialize + ?Sized>(
        &self,
        key: impl AsRef<[u8]>,
        value: &T,
        options: Option<PutOptions>,
    ) -> Result<PutResponse, Error> {
        let value = serde_json::to_vec(value).map_err(|error| {
            Error::not_applied(
                ErrorKind::InvalidArgument,
                format!(
                    "a {} cannot be written as JSON: {error}",
                    std::any::type_name::<T>()
                ),
            )
        })?;
        self.put(key, value, options).await
    }
}
