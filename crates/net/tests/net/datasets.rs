//! Data sets are found at all of their providers, while they serve them.

use std::time::Duration;

use hypha_model::{Name, NodeRole};
use hypha_net::{PeerId, Publication};

use crate::lab::{Lab, Node, eventually};

const TTL: Duration = Duration::from_secs(60);
const SHORT_TTL: Duration = Duration::from_secs(3);

async fn serve(node: &Node, names: &[&str], ttl: Duration) {
    let names = names.iter().map(|name| name.parse().unwrap()).collect();
    node.net.publish(Publication::Datasets { names, ttl }).await;
}

/// Checks that `name` is found at exactly these.
async fn found(seeker: &Node, name: &str, providers: &[PeerId]) {
    let mut expected = providers.to_vec();
    expected.sort();
    let name: Name = name.parse().unwrap();
    eventually(&format!("{name} at {} nodes", expected.len()), || async {
        let found = seeker.net.find_dataset(name.clone()).await;
        assert!(found.iter().all(|found| found.name == name && found.organisation == "acme"));
        found.iter().map(|found| found.peer).collect::<Vec<_>>() == expected
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_provider_is_found_while_it_serves() {
    let lab = Lab::new();
    let gateway = lab.gateway().await;
    let seeker = lab.node(NodeRole::Scheduler, &[&gateway]).await;
    let steady = lab.node(NodeRole::Data, &[&gateway]).await;
    let polite = lab.node(NodeRole::Data, &[&gateway]).await;
    let vanishing = tokio::runtime::Runtime::new().unwrap();
    let rude = {
        let _inside = vanishing.enter();
        lab.node(NodeRole::Data, &[&gateway]).await
    };
    serve(&steady, &["wiki", "code"], TTL).await;
    serve(&polite, &["wiki"], TTL).await;
    serve(&rude, &["wiki", "poems"], SHORT_TTL).await;
    found(&seeker, "wiki", &[steady.id(), polite.id(), rude.id()]).await;
    found(&seeker, "code", &[steady.id()]).await;
    found(&seeker, "poems", &[rude.id()]).await;
    found(&seeker, "nothing", &[]).await;

    polite.net.stop().await;
    found(&seeker, "wiki", &[steady.id(), rude.id()]).await;
    vanishing.shutdown_background();
    found(&seeker, "wiki", &[steady.id()]).await;
    found(&seeker, "poems", &[]).await;
    found(&seeker, "code", &[steady.id()]).await;
}
