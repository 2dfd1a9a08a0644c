// A client of Pomona in Node: TLS, a token, retries, a deadline, cancellation and the reason of a failure.
//
//   POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN node example.ts MODEL PROMPT

import { readFileSync } from "node:fs";
import path from "node:path";

import * as grpc from "@grpc/grpc-js";
import * as protoLoader from "@grpc/proto-loader";

import type { ProtoGrpcType as Details } from "./generated/details.ts";
import type { ProtoGrpcType as Generation } from "./generated/generation.ts";
import type { GenerationServiceClient } from "./generated/pomona/v1/GenerationService.ts";
import type { StreamGenerateRequest } from "./generated/pomona/v1/StreamGenerateRequest.ts";
import type { StreamGenerateResponse__Output as Response } from "./generated/pomona/v1/StreamGenerateResponse.ts";

// The retry policy of docs/service_config.json.
const SERVICE_CONFIG = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s",
  "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}`;
const MINUTE_MS = 60_000;

const { POMONA_SERVER = "", POMONA_CA = "", POMONA_TOKEN = "" } = process.env;
const [model, prompt] = process.argv.slice(2);
if (!model || !prompt) throw new Error("usage: node example.ts MODEL PROMPT");

// The same options as in `npm run generate`, so that the types tell what is read.
const loaded = protoLoader.loadSync(["pomona/v1/generation.proto", "details.proto"], {
  includeDirs: [path.resolve(import.meta.dirname, "../../../protos"), import.meta.dirname],
  keepCase: true, // field names as in the contract
  longs: String, // 64-bit numbers do not fit into a JavaScript number
  enums: String,
  oneofs: true, // tells which event a message holds
});
const { pomona, google } = grpc.loadPackageDefinition(loaded) as unknown as Generation & Details;

const tls = grpc.credentials.createSsl(readFileSync(POMONA_CA));
const token = grpc.credentials.createFromMetadataGenerator((_, done) => {
  const metadata = new grpc.Metadata();
  metadata.set("authorization", `Bearer ${POMONA_TOKEN}`);
  done(null, metadata);
});
const client: GenerationServiceClient = new pomona.v1.GenerationService(
  POMONA_SERVER,
  grpc.credentials.combineChannelCredentials(tls, token), // a token goes over TLS only
  { "grpc.service_config": SERVICE_CONFIG },
);

function request(model: string): StreamGenerateRequest {
  return {
    model,
    spec: {
      chat: { messages: [{ role: "ROLE_USER", text: prompt }] },
      sampling: { temperature: 0 }, // unset fields are the model's defaults
      stopping: { max_tokens: 12 },
    },
  };
}

/** Prints the text as it comes; leaving the loop early, by an exception too, cancels the call. */
async function answer(model: string, limitMs: number): Promise<void> {
  const call = client.streamGenerate(request(model), { deadline: Date.now() + limitMs });
  for await (const response of call as AsyncIterable<Response>) {
    if (response.event === "delta") process.stdout.write(response.delta?.text ?? "");
    if (response.event === "completed") console.log(`\n${response.completed?.usage?.completion_tokens} tokens`);
  }
}

/** Ends a call once it has begun; the server then computes no further. */
async function cancelled(model: string): Promise<void> {
  const call = client.streamGenerate(request(model), { deadline: Date.now() + MINUTE_MS });
  for await (const _ of call) call.cancel();
}

/** Tells how a call ended: the status, and the reason and the delay that Pomona sends with it. */
async function outcome(call: Promise<void>): Promise<string> {
  try {
    await call;
    return "OK";
  } catch (error) {
    const { code, metadata } = error as grpc.ServiceError;
    return [grpc.status[code], ...details(metadata)].join(" ");
  }
}

function details(metadata: grpc.Metadata): string[] {
  const told: string[] = [];
  const { Status, ErrorInfo, RetryInfo } = google.rpc;
  for (const bytes of metadata.get("grpc-status-details-bin")) {
    for (const { type_url, value } of Status.deserialize(bytes as Buffer).details ?? []) {
      const kind = type_url?.split("/").pop();
      if (kind === "google.rpc.ErrorInfo") {
        const info = ErrorInfo.deserialize(value as Buffer);
        told.push(`${info.reason} model=${info.metadata?.model}`);
      } else if (kind === "google.rpc.RetryInfo") {
        const { seconds, nanos } = RetryInfo.deserialize(value as Buffer).retry_delay ?? {};
        told.push(`retry in ${Number(seconds ?? 0) + (nanos ?? 0) / 1e9}s`);
      }
    }
  }
  return told;
}

console.log("answer:", await outcome(answer(model, MINUTE_MS)));
console.log("cancelled:", await outcome(cancelled(model)));
console.log("late:", await outcome(answer(model, 1)));
console.log("refused:", await outcome(answer("nothing", MINUTE_MS)));
client.close();
