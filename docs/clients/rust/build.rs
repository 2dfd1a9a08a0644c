//! Generates the client from the contract with tonic-prost-build, which calls `protoc` (on the PATH, or named by PROTOC).

fn main() -> std::io::Result<()> {
    let protos = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../protos");
    let services = ["generation", "embedding", "transcription", "model", "server"];
    let files: Vec<String> = services.iter().map(|name| format!("{protos}/pomona/v1/{name}.proto")).collect();
    tonic_prost_build::configure().build_server(false).compile_protos(&files, &[protos.to_string()])
}
