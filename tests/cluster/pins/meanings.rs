//! What the fields of `-o json` mean, by name, or by verb and place where one name means two things.

/// Verbs of which a program reads more than one document, or that have something else to say.
pub(super) const NOTES: [(&str, &str); 12] = [
    (
        "watch",
        "A document in each line: one for each revision with changes, and one for each notice.",
    ),
    (
        "lease keep-alive",
        "A document in a line after each renewal; with `--once` one.",
    ),
    (
        "lease watch",
        "A document in each line, for each event; one whose `event` is `ended` has a `cause`, and the others have what \
         `lease timetolive` shows.",
    ),
    (
        "lease list",
        "All leases, however many requests that takes.",
    ),
    ("lease top", "One look; `-o json` implies `--once`."),
    ("top", "One look; `-o json` implies `--once`."),
    (
        "elect",
        "With `--listen` a document in a line for each leader.",
    ),
    (
        "alarm list",
        "A list with an element for each member that has raised one: its `header`, `member_id` and `name`, the \
         `alarm` (`NOSPACE`), and the bytes `used` of its `quota`.",
    ),
    ("cert check", "In the order in which the files were named."),
    ("offline check", "A document in a line for each finding."),
    (
        "offline dump-kv",
        "A document in a line for each [key](#a-key).",
    ),
    (
        "offline dump-log",
        "A document in a line for each entry of the log.",
    ),
];

/// The name of a field, or a verb with a field, and what it means.
pub(super) const MEANINGS: &[(&str, &str)] = &[
    ("cluster_id", "the first 64 bits of the cluster's id"),
    ("the header: member_id", "the member that answered"),
    ("leader_id", "who leads, as far as that member knows"),
    ("the header: raft_term", "the term that it is in"),
    (
        "the header: revision",
        "the revision of the store when it answered",
    ),
    (
        "path",
        "how a read was served: `lease`, `read_lease`, `read_index`, `follower` or `serializable` ([reads.md](../guide/reads.md))",
    ),
    (
        "lease_remaining_ms",
        "what was left of the leader lease that the read was served under; 0 without one",
    ),
    (
        "lease_margin_ms",
        "by how much that lease ends before the promises of the voters do",
    ),
    (
        "read_index",
        "the place in the log that the read is not older than",
    ),
    (
        "applied_index",
        "the newest entry of the log that the state contains",
    ),
    (
        "staleness_ms",
        "how old the answer may be at most, where a bound was asked for",
    ),
    ("key", "the key"),
    ("value", "the value"),
    ("create_revision", "the revision that created the key"),
    ("mod_revision", "the revision of its last change"),
    (
        "a key: version",
        "how many changes it has had since it was created, that one included",
    ),
    (
        "a key: lease",
        "the lease that it is attached to; 0 for none",
    ),
    ("header", "of the reply"),
    ("prev_kv", "what the key held before"),
    ("prev_kvs", "what the keys held before"),
    ("kvs", "what was found"),
    ("count", "how many keys the range has, whatever the limit"),
    ("more", "whether the limit left keys out"),
    ("deleted", "how many keys were deleted"),
    ("succeeded", "whether all comparisons held"),
    (
        "ResponseRange",
        "one of the three for each operation: of a `get`",
    ),
    ("ResponsePut", "of a `put`"),
    ("ResponseDeleteRange", "of a `del`"),
    ("revision", "the revision of the store"),
    (
        "watch: revision",
        "the revision of the changes, or that the notice is about",
    ),
    (
        "watch: kvs[]",
        "with the notice `state`: the keys as they are",
    ),
    (
        "notice",
        "what it is, if it is no change: `state`, `created`, `synced`, `progress`, `resumed` or `restarted`",
    ),
    (
        "event",
        "what happened: `present` (it was there at the first look), `granted`, `renewed`, `extended`, `ttl_changed` or \
         `ended`",
    ),
    (
        "lease watch: cause",
        "why it ended: `expired`, `revoked`, or `unknown` where the leader no longer knows",
    ),
    ("type", "`PUT` or `DELETE`"),
    ("kv", "the key after the change"),
    ("id", "the id"),
    ("ttl_ms", "the time to live"),
    (
        "requested_ttl_ms",
        "what was asked for, which may be less than the minimum",
    ),
    ("name", "the name"),
    ("owner", "the owner that was given"),
    (
        "grant_index",
        "the place of the grant in the log, which tells a lease from an earlier one of the same id",
    ),
    (
        "granted_ttl_ms",
        "the time to live that the last grant or change gave it",
    ),
    (
        "renewals",
        "how often it was renewed since its grant, or since this leader gave all leases their time again; null where the node that answered does not lead",
    ),
    (
        "is_extended",
        "whether a change of leader gave it its time again since it was last renewed",
    ),
    (
        "remaining_ms",
        "what is left of it; null where the node that answered does not know",
    ),
    (
        "granted_at",
        "when it was granted, by the wall clock of the node that led",
    ),
    ("key_count", "how many keys are attached to it"),
    ("keys", "the attached keys, where they were asked for"),
    (
        "is_revoking",
        "whether it is over, and its keys are being deleted",
    ),
    (
        "is_at_risk",
        "whether less than a third of its time is left",
    ),
    ("is_partial", "whether keys of it remain to be deleted"),
    ("leases", "how many leases there are"),
    (
        "at_risk",
        "how many have less than a third of their time left",
    ),
    (
        "revoking",
        "how many are over while their keys are being deleted",
    ),
    (
        "top: leases.top",
        "the leases that are nearest to their end, as `top` of [lease top](#lease-top)",
    ),
    (
        "fencing_token",
        "a number that rises with each holder ([locks.md](../guide/locks.md))",
    ),
    ("lock: lease", "the lease that holds it"),
    ("elect: value", "what the leader published"),
    ("endpoint", "the address that was asked"),
    ("version", "the release that it runs"),
    (
        "role",
        "its part: `leader`, `follower`, `learner` and so on",
    ),
    ("last_index", "the end of its log"),
    (
        "commit_index",
        "up to where the log is known to be committed",
    ),
    ("storage_bytes", "the size of its state on disk"),
    ("bytes", "the size at which writes are refused"),
    ("no_space", "whether they are"),
    ("is_valid", "whether it holds the leader lease"),
    (
        "endpoint status: leader_lease.remaining_ms",
        "what is left of it",
    ),
    (
        "top: nodes[].lease.remaining_ms",
        "what is left of its leader lease",
    ),
    ("lease_duration_ms", "how long a leader lease is"),
    (
        "max_clock_skew_ms",
        "by how much it ends earlier than the promises of the voters",
    ),
    ("renewals", "how often it was renewed"),
    ("expirations", "how often it ran out"),
    ("rejections", "how many reads it could not be used for"),
    ("client_address", "where clients reach the member"),
    ("peer_address", "where members reach it"),
    ("warnings", "what an operator should look at"),
    ("health", "whether it serves"),
    ("took_ms", "how long its answer took"),
    ("error", "why it does not serve; empty if it does"),
    ("membership", "`voter`, `learner`, `joining` or `leaving`"),
    ("is_learner", "whether it has no vote"),
    (
        "member list: members[].status",
        "`started`, or `unstarted` until it has been heard of",
    ),
    (
        "member add: members[].status",
        "`started`, or `unstarted` until it has been heard of",
    ),
    (
        "member update: members[].status",
        "`started`, or `unstarted` until it has been heard of",
    ),
    (
        "member remove: members[].status",
        "`started`, or `unstarted` until it has been heard of",
    ),
    ("settled", "whether no change of members is under way"),
    ("from", "who led"),
    ("to", "who leads now; null if nobody did before the timeout"),
    ("enabled", "whether access is controlled"),
    (
        "auth status: revision",
        "how many changes users, roles and permissions have had",
    ),
    ("done", "what was done, in a sentence"),
    ("kind", "`read`, `write` or `readwrite`"),
    (
        "role get: permissions[].keys",
        "the key, or the range of keys, as text",
    ),
    ("role get: role", "the name of the role"),
    ("roles", "names of roles"),
    ("user", "the name of the user"),
    ("users", "names of users"),
    (
        "has_password",
        "whether the user can log in with a password",
    ),
    (
        "leader",
        "the name of the member that leads; null if nobody does",
    ),
    ("term", "the term"),
    ("cluster_version", "the version that the cluster works at"),
    ("lease", "reads served under a lease of its own"),
    ("read_lease", "under a sub-lease of the leader's"),
    (
        "top: nodes[].reads.read_index",
        "after a round to a majority",
    ),
    ("follower", "after one question to the leader"),
    ("serializable", "from its own state"),
    ("led", "whether it led"),
    ("drained", "that no request is served any more"),
    ("drain: leader", "the name of the new leader, if it led"),
    ("not_handed_over", "why leadership stayed, if it did"),
    (
        "unfinished_requests",
        "how many requests were not finished in time",
    ),
    (
        "hash",
        "the hash of everything that is stored; the same on every member at the same index",
    ),
    ("totalKey", "how many keys it holds"),
    ("totalSize", "the size of the file, in bytes"),
    (
        "compact_revision",
        "the revision up to which history is compacted",
    ),
    ("cluster", "the id of the cluster"),
    ("member_id", "the member that made it"),
    ("raft_term", "the term of the last entry in it"),
    ("chunks", "how many parts the file has"),
    ("records", "how many records it has"),
    ("file_hash", "the hash of the file"),
    ("check", "what was looked at"),
    ("place", "where"),
    ("level", "`ok`, `warn` or `fail`"),
    ("found", "what was found"),
    ("advice", "what to do; empty if nothing"),
    ("damaged", "whether it is damage"),
    ("finding", "what was found, in a sentence"),
    ("applied_term", "the term of that entry"),
    ("entries_from_log", "how many entries of the log were taken"),
    ("index", "the place of the entry"),
    ("what", "its kind"),
    (
        "removed",
        "the mark that was removed; null if there was none",
    ),
    ("cleared", "whether there was one"),
    ("certificate", "the file of a certificate"),
    ("cert init: written[].key", "the file of its private key"),
    ("cert issue: written[].key", "the file of its private key"),
    ("cert renew: written[].key", "the file of its private key"),
    ("file", "the file"),
    ("is_usable", "whether it can be used as it is"),
    (
        "identity",
        "who it is for; null if it cannot be read, or is a key",
    ),
    ("expires_in_s", "how long it is valid yet; null for a key"),
    ("sans", "the host names and addresses in it"),
    ("signer", "the authority that signed it"),
    ("problems", "why it cannot be used"),
    ("current", "the context that is used; null for none"),
    ("context list: file", "where the contexts are kept"),
    ("endpoints", "client addresses of the cluster"),
    ("cacert", "the authority that signs its nodes"),
    ("cert", "the client's certificate"),
    ("context set: key", "the file of its private key"),
    ("context show: key", "the file of its private key"),
    (
        "context list: contexts[].key",
        "the file of its private key",
    ),
    (
        "context set: user",
        "the user to log in as; null for the one in the certificate",
    ),
    (
        "context show: user",
        "the user to log in as; null for the one in the certificate",
    ),
    (
        "context list: contexts[].user",
        "the user to log in as; null for the one in the certificate",
    ),
    ("password_file", "the file of that user's password"),
    ("token_file", "the file of a token that names the user"),
    (
        "timeout_ms",
        "the deadline for a request; null for the usual one",
    ),
    (
        "connect_timeout_ms",
        "the deadline for a connection; null for that of a request",
    ),
    ("context remove: removed", "the name of what was removed"),
    ("leasehold", "the release"),
    ("commit", "of which commit it was built"),
    ("rustc", "by which compiler"),
];

/// The code of an error, and what to do about it.
pub(super) const REMEDIES: &[(&str, &str)] = &[
    (
        "LH-INVALID-ARGUMENT",
        "change the request: the sentence says which part of it is wrong",
    ),
    (
        "LH-REQUEST-TOO-LARGE",
        "write less at once, or raise `limits.max_request_bytes`, `limits.max_value_bytes` or `limits.max_key_bytes`",
    ),
    (
        "LH-NOT-LEADER",
        "ask the leader; the SDK follows it by itself",
    ),
    (
        "LH-NO-LEADER",
        "wait for the election; if it does not end, a majority of the voters is not there: `leasehold endpoint health --cluster`",
    ),
    (
        "LH-LEADER-CHANGED",
        "read, then repeat if it was not applied",
    ),
    (
        "LH-LEASE-INVALID",
        "ask with `linearizable`, which takes a quorum round where there is no lease",
    ),
    (
        "LH-QUORUM-TIMEOUT",
        "see whether a majority of the voters is reachable: `leasehold endpoint health --cluster`",
    ),
    (
        "LH-DEADLINE-EXCEEDED",
        "read before a write is repeated; a longer timeout helps where the cluster is slow: `leasehold doctor`",
    ),
    (
        "LH-SLOW-DOWN",
        "wait as long as it says; if it stays, the cluster has more work than it can do ([capacity.md](../guide/capacity.md))",
    ),
    (
        "LH-SESSION-EXPIRED",
        "read before the write is repeated in a new session",
    ),
    (
        "LH-STALE-SEQUENCE",
        "a bug of the client's: each write has a number of its own",
    ),
    (
        "LH-NO-SPACE",
        "delete, compact (`leasehold compaction --physical`), or raise `quota.bytes` ([capacity.md](../guide/capacity.md))",
    ),
    (
        "LH-CORRUPT",
        "nothing for a client; see the node's log ([troubleshooting.md](../guide/troubleshooting.md))",
    ),
    ("LH-UNAVAILABLE", "ask another node, or wait"),
    (
        "LH-CLUSTER-MISMATCH",
        "correct the endpoints or the certificate: they belong to different clusters",
    ),
    (
        "LH-TLS-HANDSHAKE",
        "look at the certificates of both sides: `leasehold cert check`",
    ),
    ("LH-CONNECTION-LOST", "read before a write is repeated"),
    (
        "LH-CONNECT-FAILED",
        "see whether the endpoints are right, the nodes run and UDP passes the firewall",
    ),
    (
        "LH-UNSUPPORTED",
        "upgrade the node: it does not know this request yet",
    ),
    ("LH-INTERNAL", "report it, with the log of the node"),
    (
        "LH-REPLY-NOT-KEPT",
        "nothing: the write took effect; read what it wrote",
    ),
    (
        "LH-COMPACTED",
        "read at a newer revision; a watch starts over with the present state",
    ),
    (
        "LH-FUTURE-REVISION",
        "wait, or ask a node that is further; the newest that a client has seen counts as asked for, too ([reads.md](../guide/reads.md))",
    ),
    (
        "LH-KEY-NOT-FOUND",
        "write the value and the lease instead of keeping them",
    ),
    ("LH-TXN-TOO-LARGE", "split the transaction"),
    (
        "LH-QUOTA-EXCEEDED",
        "revoke leases of this user that nobody needs, or have `lease.max_per_user` raised",
    ),
    ("LH-DUPLICATE-KEY", "write each key once"),
    (
        "LH-LEASE-NOT-FOUND",
        "grant another lease: this one has ended, or never was",
    ),
    ("LH-LEASE-EXISTS", "choose another id or name, or none"),
    (
        "LH-LEASE-EXPIRED",
        "stop what the lease stood for, then grant another",
    ),
    ("LH-TTL-OUT-OF-RANGE", "ask for less"),
    (
        "LH-LEASE-LIMIT",
        "share leases between keys, or raise `lease.max_leases`",
    ),
    (
        "LH-RESPONSE-TOO-LARGE",
        "read by pages, with a limit, or keys only",
    ),
    (
        "LH-SLOW-WATCHER",
        "open the watch again from the last revision that was seen, and read faster",
    ),
    ("LH-WATCH-NOT-FOUND", "open it again"),
    (
        "LH-WATCH-EXISTS",
        "a bug of the client's: each watch has an id of its own",
    ),
    (
        "LH-FENCED",
        "stop: the lock has another holder, or another mirror with the same progress key has begun",
    ),
    ("LH-SNAPSHOT-GONE", "begin the backup again"),
    (
        "LH-MEMBER-EXISTS",
        "choose another name or address, or `member replace`",
    ),
    ("LH-MEMBER-NOT-FOUND", "see `leasehold member list`"),
    (
        "LH-UNSAFE-RECONFIGURATION",
        "see what the sentence names: mostly another change that is under way, or a member that is down ([members.md](../guide/members.md))",
    ),
    (
        "LH-LEARNER-NOT-READY",
        "wait until it has caught up: `leasehold endpoint status --cluster`",
    ),
    (
        "LH-UNAUTHENTICATED",
        "give the right user and password ([security.md](../guide/security.md))",
    ),
    (
        "LH-TOKEN-EXPIRED",
        "log in again; the SDK does so by itself",
    ),
    (
        "LH-PERMISSION-DENIED",
        "have an administrator grant the permission to a role of the user",
    ),
    ("LH-USER-NOT-FOUND", "see `leasehold user list`"),
    ("LH-USER-EXISTS", "choose another name"),
    ("LH-ROLE-NOT-FOUND", "see `leasehold role list`"),
    ("LH-ROLE-EXISTS", "choose another name"),
    (
        "LH-CONFLICT",
        "begin again, later or with fewer writers of the same keys",
    ),
    (
        "LH-TOO-OLD",
        "wait until the cache has caught up, or read from the cluster",
    ),
];
