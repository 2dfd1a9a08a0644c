// Streams the tokens of one answer, knowing nothing of the server but its .proto files.
//
//   node stream.mjs ADDRESS MODEL PROMPT [MAX_TOKENS]
//
// Prints one line of JSON for each event, and a last one with the status of the call: {"status": "OK"}.

import path from "node:path";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const DEADLINE_MS = 60_000;
const DEFAULT_MAX_TOKENS = 16;
const here = path.dirname(fileURLToPath(import.meta.url));
const protos = path.resolve(here, "../../../protos");

const [address, model, prompt, maxTokens] = process.argv.slice(2);
if (!prompt) {
  console.error("usage: node stream.mjs ADDRESS MODEL PROMPT [MAX_TOKENS]");
  process.exit(2);
}

const definition = protoLoader.loadSync("pomona/v1/generation.proto", {
  includeDirs: [protos],
  keepCase: true, // field names as in the contract
  longs: String, // 64-bit numbers do not fit into a JavaScript number
  enums: String,
  oneofs: true, // tells which event a message holds
});
const { GenerationService } = grpc.loadPackageDefinition(definition).pomona.v1;

// A socket's path is no host name, which the server checks for.
const options = address.startsWith("unix:") ? { "grpc.default_authority": "localhost" } : {};
const client = new GenerationService(address, grpc.credentials.createInsecure(), options);
const request = {
  model,
  spec: {
    chat: { messages: [{ role: "ROLE_USER", text: prompt }] },
    sampling: { temperature: 0 },
    stopping: { max_tokens: Number(maxTokens ?? DEFAULT_MAX_TOKENS) },
  },
};

const call = client.streamGenerate(request, { deadline: Date.now() + DEADLINE_MS });
call.on("data", (message) => console.log(JSON.stringify({ [message.event]: message[message.event] })));
call.on("error", () => {}); // its status arrives as well
call.on("status", ({ code, details }) => {
  console.log(JSON.stringify({ status: grpc.status[code], details }));
  client.close();
  process.exitCode = code === grpc.status.OK ? 0 : 1;
});
