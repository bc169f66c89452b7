//! Members and endpoints by service records of DNS, from a DNS server of the tests' own.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use leasehold::api::{Consistency, ErrorKind, Member};
use leasehold::client::{Client, SrvDiscovery};

use crate::harness::{Cluster, eventually, left_out, run, with_hosts};

/// The records of each name: hosts and ports.
type Zone = Arc<Mutex<BTreeMap<String, Vec<(String, u16)>>>>;

/// Answers questions for service records by what is in the zone, for as long as the tests run.
fn serve(zone: Zone) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let answer = answer(&buffer[..length], &zone);
            socket.send_to(&answer, from).unwrap();
        }
    });
    address
}

fn answer(question: &[u8], zone: &Zone) -> Vec<u8> {
    let mut name = String::new();
    let mut at = 12;
    while question[at] != 0 {
        let end = at + 1 + usize::from(question[at]);
        let label = String::from_utf8_lossy(&question[at + 1..end]);
        name = [name, label.into_owned()].join(".");
        at = end;
    }
    let mut answer = question.to_vec();
    let zone = zone.lock().unwrap();
    let Some(records) = zone.get(name.trim_start_matches('.')) else {
        answer[2..4].copy_from_slice(&[0x81, 0x83]);
        return answer;
    };
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[7] = records.len() as u8;
    for (host, port) in records {
        let mut data = vec![0, 0, 0, 0];
        data.extend(port.to_be_bytes());
        for label in host.split('.') {
            data.push(label.len() as u8);
            data.extend(label.as_bytes());
        }
        data.push(0);
        answer.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
        answer.extend(data);
    }
    answer
}

/// Service records name hosts. These are in a file of the nodes' own, as there is no DNS for addresses here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_that_dns_names_in_any_order_found_one_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let names: Vec<String> = (1..=3).map(|node| format!("n{node}.example.org")).collect();
    fs::write(&hosts, format!("127.0.0.1 localhost {}\n", names.join(" "))).unwrap();
    if !with_hosts(&hosts)
        .arg("--version")
        .output()
        .is_ok_and(|run| run.status.success())
    {
        return left_out("founding a cluster by DNS: there are no mount namespaces");
    }
    let mut cluster = Cluster::prepare(3);
    for place in 0..3 {
        // Each is told of them in another order.
        let zone = Zone::default();
        let dns = serve(zone.clone());
        let mut records: Vec<_> = (0..3)
            .map(|node| (names[node].clone(), cluster.nodes[node].peer.port()))
            .collect();
        records.rotate_left(place);
        let service = "_leasehold-server._udp.example.org".to_owned();
        zone.lock().unwrap().insert(service, records);
        let node = &mut cluster.nodes[place];
        let text = fs::read_to_string(&node.config).unwrap();
        let own = text
            .lines()
            .find(|line| line.starts_with("initial"))
            .unwrap();
        let settings = format!(
            "discovery_srv = \"example.org\"\ndiscovery_size = 3\ndiscovery_dns = \"{dns}\""
        );
        fs::write(&node.config, text.replace(own, &settings)).unwrap();
        node.hosts = Some(hosts.clone());
    }
    cluster.start_and_settle();
    let client = cluster.client().await;
    client.put("k", "v", None).await.unwrap();
    let members = client.member_list(Consistency::Linearizable).await.unwrap();
    let of = |member: &Member| member.info.peer_address.clone();
    let mut found: Vec<String> = members.members.iter().map(of).collect();
    found.sort();
    let ports = cluster.nodes.iter().map(|node| node.peer.port());
    let named: Vec<String> = names
        .iter()
        .zip(ports)
        .map(|(name, port)| format!("{name}:{port}"))
        .collect();
    assert_eq!(found, named);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_waits_for_dns_to_name_its_cluster_and_clients_find_it_there() {
    let zone = Zone::default();
    let dns = serve(zone.clone());
    let mut cluster = Cluster::prepare(1);
    let node = &mut cluster.nodes[0];
    let text = fs::read_to_string(&node.config).unwrap();
    let own: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("initial"))
        .collect();
    assert_eq!(own.len(), 1, "{text}");
    let settings = format!(
        "discovery_srv = \"example.org\"\ndiscovery_srv_name = \"blue\"\ndiscovery_size = 1\n\
         discovery_dns = \"{dns}\""
    );
    fs::write(&node.config, text.replace(own[0], &settings)).unwrap();
    let port = own[0].rsplit_once(':').unwrap().1;
    let port: u16 = port.trim_end_matches(['"', ']']).parse().unwrap();
    node.start();
    let log = cluster.nodes[0].log.clone();
    let log = || fs::read_to_string(&log).unwrap();
    let says = |wanted: &str| eventually(wanted, || log().contains(wanted).then_some(()));
    says("DNS has no SRV records for _leasehold-server-blue._udp.example.org");
    let service = |of: &str| format!("_leasehold-{of}._udp.example.org");
    let with = |of: &str, records: &[(&str, u16)]| {
        let records = records
            .iter()
            .map(|(host, port)| ((*host).to_owned(), *port));
        zone.lock().unwrap().insert(service(of), records.collect());
    };
    // One member more than was said might be another cluster.
    with(
        "server-blue",
        &[("n1.example.org", port), ("n2.example.org", port)],
    );
    says("it names 2 (n1, n2), and cluster.discovery_size is 1");
    with("server-blue", &[("n1.example.org", port)]);
    cluster.wait_until_settled();

    // Clients find it, too, once there are records for them.
    let client = cluster.nodes[0].client.port();
    let discovery = SrvDiscovery::new("example.org").with_dns(dns);
    let options = cluster.options().with_discovery(discovery.clone());
    let none: [&str; 0] = [];
    let error = Client::connect(none, Some(options.clone()))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::ConnectFailed);
    assert!(
        error
            .to_string()
            .contains("_leasehold-client._udp.example.org"),
        "{error}"
    );
    with("client", &[("127.0.0.1", client)]);
    with("client-blue", &[("127.0.0.1", client)]);
    let found = cluster.client_of(Vec::new(), options.clone()).await;
    assert_eq!(found.endpoints(), [format!("127.0.0.1:{client}")]);
    found.put("k", "v", None).await.unwrap();
    let named = options.with_discovery(discovery.with_name("blue"));
    let named = cluster.client_of(Vec::new(), named).await;
    assert_eq!(named.get("k", None).await.unwrap().value().unwrap(), "v");

    // And the command line, which without endpoints asks for them.
    let mut flags = cluster.flags();
    flags.retain(|flag| !flag.starts_with("--endpoints"));
    flags.push(format!("--discovery-dns={dns}"));
    let by = |more: &[&str]| {
        let flags = flags.iter().map(String::as_str);
        run(&flags.chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let get = ["get", "k", "--print-value-only"];
    let (code, out, error) = by(&[&["--discovery-srv=example.org"][..], &get].concat());
    assert_eq!((code, out.trim()), (0, "v"), "{error}");
    let blue = ["--discovery-srv=example.org", "--discovery-srv-name=blue"];
    let (code, out, error) = by(&[&blue[..], &get].concat());
    assert_eq!((code, out.trim()), (0, "v"), "{error}");
    let (code, _, error) = by(&[&["--discovery-srv=example.com"][..], &get].concat());
    assert!(
        code != 0 && error.contains("DNS has no SRV records"),
        "{error}"
    );
    let (code, _, error) = by(&[&["--discovery-srv=a b"][..], &get].concat());
    assert!(code != 0 && error.contains("is not a domain"), "{error}");

    let (code, _, error) = by(&[&["--discovery-srv-name=blue"][..], &get].concat());
    assert!(code == 2 && error.contains("name the domain"), "{error}");

    // Started again, it goes on with its data: when DNS names it still, when the cluster has grown since, and
    // when DNS knows nothing any more.
    let last = "this node has data, so it begins with those that were named at its last start";
    let grown = [("n1.example.org", port), ("n2.example.org", port)];
    for (records, complaints) in [(Some(&grown[..1]), 0), (Some(&grown[..]), 1), (None, 2)] {
        assert_eq!(cluster.nodes[0].stop(), 0);
        match records {
            Some(records) => with("server-blue", records),
            None => zone.lock().unwrap().clear(),
        }
        cluster.nodes[0].start();
        cluster.wait_until_settled();
        let again = cluster.client().await;
        assert_eq!(again.get("k", None).await.unwrap().value().unwrap(), "v");
        let log = cluster.nodes[0].log_text();
        assert_eq!(log.matches(last).count(), complaints, "{log}");
    }
}
