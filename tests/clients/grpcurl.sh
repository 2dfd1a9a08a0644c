#!/usr/bin/env bash
# Streams an answer with grpcurl, which learns the contract from the server's reflection alone.
#
#   tests/clients/grpcurl.sh ADDRESS MODEL [GRPCURL [FLAG ...]]
#
# Without flags the server is called without TLS. Fails unless the services are listed, tokens arrive, and the stream ends as the contract says.
set -euo pipefail

address=${1:?address}
model=${2:?model}
grpcurl=${3:-grpcurl}
flags=("${@:4}")
test ${#flags[@]} -gt 0 || flags=(-plaintext)
service=pomona.v1.GenerationService
request=$(
  cat <<JSON
{
  "model": "$model",
  "spec": {
    "chat": {"messages": [{"role": "ROLE_USER", "text": "Why is the sky blue?"}]},
    "sampling": {"temperature": 0},
    "stopping": {"max_tokens": 12}
  }
}
JSON
)

services=$("$grpcurl" "${flags[@]}" -max-time 60 "$address" list)
grep -qx "$service" <<<"$services"
"$grpcurl" "${flags[@]}" -max-time 60 "$address" describe "$service"

answer=$("$grpcurl" "${flags[@]}" -max-time 120 -emit-defaults -d "$request" "$address" "$service/StreamGenerate")
tokens=$(grep -c '"delta"' <<<"$answer" || true)
grep -q '"started"' <<<"$answer"
grep -q '"completed"' <<<"$answer"
test "$tokens" -gt 0
echo "grpcurl: $tokens deltas from $model at $address by reflection alone"
