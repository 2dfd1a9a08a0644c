#!/usr/bin/env bash
# Builds grpcurl from its Go module, serves the demo's model, and runs grpcurl.sh against it.
#
#   tests/clients/grpcurl_ci.sh [PYTHON]
#
# Needs Go, and an install of Pomona with the demo's model under PYTHON.
set -euo pipefail

version=v1.9.4
python=${1:-.venv/bin/python}
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$root/.cache/bin

mkdir -p "$bin"
test -x "$bin/grpcurl-$version" || {
  echo "building grpcurl $version"
  GOBIN=$bin go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version"
  mv "$bin/grpcurl" "$bin/grpcurl-$version"
}

checkpoint=$("$python" -P -c 'from gateway.cli.demo import demo_checkpoint; print(demo_checkpoint())')
coproc SERVER { exec "$python" -P -m gateway serve --listen 127.0.0.1:0 --log-level warning --model "smollm2=$checkpoint"; }
server=$SERVER_PID
trap 'kill "$server" 2>/dev/null || true; wait "$server" || true' EXIT
read -r -t 60 -u "${SERVER[0]}" greeting

bash "$root/tests/clients/grpcurl.sh" "${greeting#listening on }" smollm2 "$bin/grpcurl-$version"
