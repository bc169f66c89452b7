//! Why a token of an issuer is no good, by name.

use crate::api::{Error, ErrorKind};

/// The longest name of a user, in bytes.
pub(super) const USER_BYTES_MAX: usize = 255;

/// Why a token of an issuer is no good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("it is not a signed JWT of three parts in base64url")]
    Form,
    #[error("its header is not one of a signed JWT")]
    Header,
    #[error("it is signed with {0:?}, and only ES256, RS256 and EdDSA are accepted")]
    Algorithm(String),
    #[error("its header wants what is not known here (crit)")]
    Critical,
    #[error("it is a {0:?}, and neither a JWT nor an access token")]
    Type(String),
    #[error("it names no key (kid)")]
    NoKeyId,
    #[error("its key {0:?} is none of auth.oidc.jwks_file")]
    UnknownKey(String),
    #[error("its algorithm is not that of its key")]
    OtherAlgorithm,
    #[error("its signature is wrong")]
    Signature,
    #[error("its claims are not a JSON object")]
    Claims,
    #[error("its claim {0} is missing or of the wrong type")]
    Claim(String),
    #[error("it is of another issuer than auth.oidc.issuer")]
    Issuer,
    #[error("it is for another audience than auth.oidc.audience")]
    Audience,
    #[error("it is not valid yet (nbf): check this node's clock")]
    NotYet,
    #[error("it has expired: get another one from the issuer")]
    Expired,
    #[error("its address is not verified: email_verified is not true")]
    EmailNotVerified,
    #[error(
        "the user that it names has no name of 1 to {USER_BYTES_MAX} bytes without control characters"
    )]
    User,
}

impl From<TokenError> for Error {
    fn from(error: TokenError) -> Self {
        let kind = match error {
            TokenError::Expired => ErrorKind::TokenExpired,
            _ => ErrorKind::Unauthenticated,
        };
        Self::not_applied(
            kind,
            format!("the token of the issuer is not accepted: {error}"),
        )
    }
}
