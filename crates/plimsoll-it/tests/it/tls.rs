//! Serving TLS from one command.

use crate::rig::{Folder, wait_for};

#[test]
fn up_serves_tls_to_its_host_and_to_clients_that_trust_it() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let up = ["up", "--listen=127.0.0.1:0", "--agent-listen=127.0.0.1:0", "--host-name=h1"];
    let more = ["--driver=simulated", "--tls-cert=cert.pem", "--tls-key=key.pem"];
    let mut server = folder.serve(&[&up[..], &more].concat(), "plimsoll-data/address");
    let address = folder.path().join("plimsoll-data/address");
    let address = std::fs::read_to_string(address).unwrap();
    assert!(address.starts_with("https://127.0.0.1:"), "{address}");
    // The address is there once the keys are.
    for key in ["operator.key", "tenant-default.key", "host.key"] {
        assert!(folder.path().join("plimsoll-data").join(key).exists(), "{key}");
    }
    let host = ["hosts", "show", "h1", "--json", "--deadline=0", "--ca-file=cert.pem"];
    wait_for("a heartbeat over TLS", || {
        server.assert_alive();
        let done = folder.run(&host);
        done.code == 0 && done.json()["status"] == "fresh"
    });
    folder.run(&["ls", "--deadline=0"]).exits(75).says("certificate").says("--ca-file");
    folder.run(&["up", "--tls-cert=cert.pem"]).exits(2).says("--tls-key");
    assert!(server.stop().success());
}
