//! Reads that any node may serve, at the one that answers soonest.

use super::*;

/// Two nodes behind relays, so that each is as far as the test says.
struct Map {
    nodes: [Fake; 2],
    relays: [Relay; 2],
}

impl Map {
    async fn of(authority: &Authority) -> Self {
        let nodes = ["n1", "n2"].map(|name| {
            fake(authority, name, move |_, frame| {
                reply(Ok(answer(name, frame).unwrap()))
            })
        });
        let relays = [Relay::start().await, Relay::start().await];
        for (relay, node) in relays.iter().zip(&nodes) {
            relay.leads_to(&node.address);
        }
        Self { nodes, relays }
    }

    fn put_at(&self, far: [u64; 2]) {
        for (relay, far) in self.relays.iter().zip(far) {
            relay.delays(Duration::from_millis(far));
        }
    }

    async fn client(&self, authority: &Authority) -> Client {
        let endpoints = self.relays.each_ref().map(|relay| relay.address.clone());
        let client = Client::connect(endpoints, Some(options(authority)));
        client.await.unwrap()
    }

    /// Reads until only `node` has been asked for a while.
    async fn read_until_at(&self, client: &Client, node: usize) {
        let mut in_a_row = 0;
        while in_a_row < 10 {
            let before = self.nodes[node].calls().len();
            let stale = GetOptions::new().with_consistency(Consistency::Serializable);
            client.get("k", Some(stale)).await.unwrap();
            in_a_row = match self.nodes[node].calls().len() > before {
                true => in_a_row + 1,
                false => 0,
            };
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn stale_reads_go_to_the_node_with_the_shortest_round_trip_and_follow_it() {
    run_watching_for_silence(async {
        let authority = Authority::new();
        let map = Map::of(&authority).await;
        map.put_at([80, 1]);
        let client = map.client(&authority).await;
        map.read_until_at(&client, 1).await;
        map.put_at([1, 200]);
        map.read_until_at(&client, 0).await;
    });
}
