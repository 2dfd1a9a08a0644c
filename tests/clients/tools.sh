#!/usr/bin/env bash
# Builds grpcurl, ghz and grpc_health_probe from their Go modules into .cache/bin, each once a version.
set -euo pipefail

bin=$(cd "$(dirname "$0")/../.." && pwd)/.cache/bin
mkdir -p "$bin"

build() { # NAME VERSION PACKAGE
  test -x "$bin/$1-$2" || {
    echo "building $1 $2"
    GOBIN=$bin go install "$3@$2"
    mv "$bin/$1" "$bin/$1-$2"
  }
  ln -sf "$1-$2" "$bin/$1"
}

build grpcurl v1.9.4 github.com/fullstorydev/grpcurl/cmd/grpcurl
build ghz v0.120.0 github.com/bojand/ghz/cmd/ghz
build grpc-health-probe v0.4.63 github.com/grpc-ecosystem/grpc-health-probe
