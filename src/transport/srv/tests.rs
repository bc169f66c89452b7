//! A DNS server of the tests' own, which answers as it is told, and bytes that nobody meant.

use proptest::prelude::*;

use super::message::{Answer, Question};
use super::*;

const NAME: &str = "_leasehold-client._udp.example.org";

/// A name, spelled out.
fn spelled(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = owner.to_vec();
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
    bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn srv(owner: &[u8], [priority, weight, port]: [u16; 3], target: &[u8]) -> Vec<u8> {
    let numbers = [priority, weight, port].map(u16::to_be_bytes).concat();
    record(owner, 33, &[&numbers, target].concat())
}

/// The response to `question` with these flags and records.
fn response(question: &[u8], flags: [u8; 2], records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    bytes[2..4].copy_from_slice(&flags);
    bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    bytes.extend(records.concat());
    bytes
}

const FINE: [u8; 2] = [0x81, 0x80];
/// The name of the question, where it stands.
const ASKED: &[u8] = &[0xc0, 12];

fn read(records: &[Vec<u8>]) -> Result<Option<Answer>, String> {
    let question = Question::new(NAME, 7).unwrap();
    let message = response(question.bytes(), FINE, records);
    assert!(question.is_answered_by(&message));
    question
        .read(&message, true)
        .map_err(|error| error.to_string())
}

fn targets(records: &[Vec<u8>]) -> Vec<String> {
    match read(records) {
        Ok(Some(Answer::Records(records))) => records.into_iter().map(|it| it.target).collect(),
        Ok(Some(Answer::Nothing)) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_are_read_in_every_spelling_of_their_names() {
    let target = [&[2][..], b"N1", &[0xc0, 12 + 23]].concat();
    // The question's name from its third label on.
    assert_eq!(spelled(NAME)[23..][..8], *b"\x07example");
    let whole = srv(&spelled(NAME), [1, 2, 7400], &spelled("n1.example.org"));
    let short = srv(ASKED, [1, 2, 7400], &target);
    let found = SrvRecord {
        priority: 1,
        weight: 2,
        port: 7400,
        target: "n1.example.org".to_owned(),
    };
    for one in [whole, short] {
        assert_eq!(read(&[one]), Ok(Some(Answer::Records(vec![found.clone()]))));
    }
    // Records of others and of other kinds are no answer, and an alias leads to one.
    let other = srv(
        &spelled("_other._udp.example.org"),
        [0, 0, 1],
        &spelled("x"),
    );
    assert_eq!(targets(std::slice::from_ref(&other)), Vec::<String>::new());
    let alias = record(ASKED, 5, &spelled("_Other._udp.example.org"));
    assert_eq!(targets(&[other.clone(), alias]), ["x"]);
    let circle = record(ASKED, 5, ASKED);
    let text = record(ASKED, 16, b"\x04text");
    assert_eq!(
        targets(&[circle, text, srv(ASKED, [0, 0, 1], &spelled("y"))]),
        ["y"]
    );
}

#[test]
fn what_is_malformed_is_refused() {
    for (records, wanted) in [
        (vec![srv(&[0xc0, 12 + 50], [0; 3], &[0])], "behind itself"),
        (vec![srv(ASKED, [0; 3], &[0xc0, 0xff])], "behind itself"),
        (vec![srv(ASKED, [0; 3], &[0x80, 1])], "unknown kind"),
        (
            vec![srv(ASKED, [0; 3], &spelled("a b"))],
            "other characters",
        ),
        (vec![srv(ASKED, [0; 3], b"\x01\xff\0")], "other characters"),
        (vec![record(ASKED, 33, &[0; 5])], "ends too soon"),
        (vec![srv(ASKED, [0; 3], &[0, 0])], "not as long as it says"),
        (vec![ASKED.to_vec()], "ends too soon"),
        (
            vec![record(ASKED, 16, &[0; 9])[..15].to_vec()],
            "longer than the message",
        ),
        (vec![srv(ASKED, [0; 3], &[63; 63])], "too soon"),
        (
            vec![srv(
                ASKED,
                [0; 3],
                &spelled(&vec!["a".repeat(60); 5].join(".")),
            )],
            "too long",
        ),
    ] {
        let said = read(&records).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

#[test]
fn a_question_has_the_name_of_a_service() {
    for good in [
        "a",
        "a.b.",
        "_x-1._udp.example.org",
        &vec!["a".repeat(63); 3].join("."),
    ] {
        assert!(Question::new(good, 0).is_some(), "{good}");
    }
    let long = vec!["a".repeat(63); 4].join(".");
    for bad in [
        "",
        ".",
        "a..b",
        "a b",
        "ä.org",
        ".a",
        "a..",
        &"a".repeat(64),
        &long,
    ] {
        assert!(Question::new(bad, 0).is_none(), "{bad}");
    }
}

#[test]
fn the_records_of_a_cluster_have_names_as_those_of_etcd() {
    let name = |service, suffix, domain| srv_name(service, suffix, domain).ok();
    let client = name(SrvService::Client, None, "example.org.");
    assert_eq!(client.as_deref(), Some(NAME));
    let server = name(SrvService::Server, Some("blue"), "org");
    assert_eq!(server.as_deref(), Some("_leasehold-server-blue._udp.org"));
    for (suffix, domain) in [
        (None, ""),
        (None, "a..b"),
        (Some("a.b"), "org"),
        (Some("a b"), "org"),
        (Some("x"), ""),
    ] {
        assert_eq!(
            name(SrvService::Client, suffix, domain),
            None,
            "{suffix:?} {domain}"
        );
    }
}

#[test]
fn resolvers_are_those_of_the_file_and_this_machine_if_it_names_none() {
    let text = "# x\nsearch a\nnameserver 10.0.0.1\n nameserver\t::1 # x\nnameserver fe80::1%eth0\n\
                nameservers 1.1.1.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n";
    let found: Vec<String> = resolvers_in(text)
        .iter()
        .map(SocketAddr::to_string)
        .collect();
    assert_eq!(found, ["10.0.0.1:53", "[::1]:53", "10.0.0.2:53"]);
    assert_eq!(resolvers_in("nothing")[0].to_string(), "127.0.0.1:53");
}

/// A DNS server whose answers over UDP and TCP are made by these; an empty one is not sent.
async fn server(
    udp: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
    tcp: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
) -> SocketAddr {
    let (socket, listener) = loop {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        if let Ok(listener) = tokio::net::TcpListener::bind(address).await {
            break (socket, listener);
        }
    };
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            for answer in udp(&buffer[..length]) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let length = stream.read_u16().await.unwrap();
            let mut question = vec![0; length.into()];
            stream.read_exact(&mut question).await.unwrap();
            let answer = tcp(&question);
            stream.write_u16(answer.len() as u16).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    address
}

fn nobody(_: &[u8]) -> Vec<u8> {
    Vec::new()
}

#[tokio::test]
async fn forged_answers_are_passed_over_and_the_right_one_is_sorted() {
    let answers = |question: &[u8]| {
        let records = [
            srv(ASKED, [1, 0, 7401], &spelled("b.org")),
            srv(ASKED, [0, 5, 7402], &spelled("c.org")),
            srv(ASKED, [0, 9, 7403], &spelled("d.org")),
        ];
        let right = response(question, FINE, &records);
        let evil = response(question, FINE, &[srv(ASKED, [0; 3], &spelled("evil.org"))]);
        let changed = |at: usize, by: u8| {
            let mut forged = evil.clone();
            forged[at] ^= by;
            forged
        };
        // Another number, no response, another operation, another name, and not even a header.
        let forged = [
            changed(0, 1),
            changed(2, 0x80),
            changed(2, 0x08),
            changed(14, 1),
        ];
        [&forged[..], &[b"x".to_vec(), right]].concat()
    };
    let address = server(answers, nobody).await;
    let found = lookup_srv(NAME, &[address]).await.unwrap();
    let found: Vec<(&str, u16)> = found
        .iter()
        .map(|it| (it.target.as_str(), it.port))
        .collect();
    assert_eq!(found, [("d.org", 7403), ("c.org", 7402), ("b.org", 7401)]);
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_asked_for_over_tcp() {
    let cut_off = |question: &[u8]| vec![response(question, [0x83, 0x80], &[])];
    let many = |question: &[u8]| {
        let records: Vec<Vec<u8>> = (0..500)
            .map(|number| {
                srv(
                    ASKED,
                    [0, 0, 1],
                    &spelled(&format!("n{number:03}.example.org")),
                )
            })
            .collect();
        response(question, FINE, &records)
    };
    let address = server(cut_off, many).await;
    let found = lookup_srv(NAME, &[address]).await.unwrap();
    assert_eq!(
        (found.len(), found[499].target.as_str()),
        (500, "n499.example.org")
    );
    let never = server(cut_off, |question| response(question, [0x83, 0x80], &[])).await;
    let refused = lookup_srv(NAME, &[never]).await.unwrap_err();
    assert!(refused.to_string().contains("it is cut off"), "{refused}");
}

#[tokio::test]
async fn a_resolver_that_fails_is_followed_by_the_next_and_what_is_not_there_has_a_name() {
    let failing = server(
        |question| vec![response(question, [0x81, 0x82], &[])],
        nobody,
    )
    .await;
    let one = |question: &[u8]| {
        vec![response(
            question,
            FINE,
            &[srv(ASKED, [0; 3], &spelled("a"))],
        )]
    };
    let good = server(one, nobody).await;
    assert_eq!(lookup_srv(NAME, &[failing, good]).await.unwrap().len(), 1);
    let refused = lookup_srv(NAME, &[failing]).await.unwrap_err();
    assert!(matches!(&refused, SrvError::NoAnswer { reason, .. } if reason.contains("code 2")));
    let missing = server(
        |question| vec![response(question, [0x81, 0x83], &[])],
        nobody,
    )
    .await;
    let refused = lookup_srv(NAME, &[missing]).await.unwrap_err();
    assert_eq!(refused, SrvError::NoRecords(NAME.to_owned()));
    let empty = server(|question| vec![response(question, FINE, &[])], nobody).await;
    let refused = lookup_srv(NAME, &[empty]).await.unwrap_err();
    assert_eq!(refused, SrvError::NoRecords(NAME.to_owned()));
    let none = |question: &[u8]| vec![response(question, FINE, &[srv(ASKED, [0; 3], &[0])])];
    let none = server(none, nobody).await;
    let refused = lookup_srv(NAME, &[none]).await.unwrap_err();
    assert_eq!(refused, SrvError::NoService(NAME.to_owned()));
    let refused = lookup_srv("a b", &[good]).await.unwrap_err();
    assert_eq!(refused, SrvError::Name("a b".to_owned()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_panic(flags in any::<[u8; 2]>(), count in any::<[u8; 2]>(), rest in prop::collection::vec(any::<u8>(), 0..300)) {
        let question = Question::new(NAME, 7).unwrap();
        let mut message = response(question.bytes(), flags, &[]);
        message[6..8].copy_from_slice(&count);
        message.extend(&rest);
        let _ = question.read(&message, true);
        prop_assert!(!question.is_answered_by(&rest));
    }

    #[test]
    fn no_change_of_a_good_answer_panics(
        changes in prop::collection::vec((0_usize..200, any::<u8>()), 1..6), cut in 0_usize..200,
    ) {
        let question = Question::new(NAME, 7).unwrap();
        let alias = record(ASKED, 5, &spelled("_other._udp.example.org"));
        let records = [alias, srv(ASKED, [1, 2, 3], &[&[2][..], b"n1", &[0xc0, 12 + 23]].concat())];
        let mut message = response(question.bytes(), FINE, &records);
        for (at, byte) in changes {
            let at = at % message.len();
            message[at] = byte;
        }
        message.truncate(cut.max(question.bytes().len()));
        if question.is_answered_by(&message) {
            let _ = question.read(&message, true);
        }
    }
}

#[test]
fn a_target_that_is_named_twice_is_one_and_comes_where_it_is_first() {
    let record = |priority, weight, port, target: &str| SrvRecord {
        priority,
        weight,
        port,
        target: target.to_owned(),
    };
    let records = vec![
        record(9, 0, 1, "a"),
        record(1, 0, 1, "b"),
        record(0, 5, 1, "a"),
        record(0, 5, 1, "a"),
        record(2, 0, 2, "a"),
        record(0, 9, 1, "b"),
    ];
    let found = in_order(NAME, records).unwrap();
    let found: Vec<_> = found.iter().map(|it| (&*it.target, it.port)).collect();
    assert_eq!(found, [("b", 1), ("a", 1), ("a", 2)]);
}
