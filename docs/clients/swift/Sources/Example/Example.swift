// A client of Pomona in Swift: TLS, a token, retries, a deadline, cancellation and the reason of a failure.
//
//   POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN swift run Example MODEL PROMPT

import Foundation
import GRPCCore
import GRPCNIOTransportHTTP2
import GRPCProtobuf

/// The retry policy of docs/service_config.json.
let serviceConfig = """
  {"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s",
    "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}
  """

@main
struct Example {
  typealias Client = Pomona_GenerationService.Client<HTTP2ClientTransport.Posix>

  let client: Client
  let token: Metadata
  let prompt: String

  static func main() async throws {
    let arguments = CommandLine.arguments.dropFirst()
    let environment = ProcessInfo.processInfo.environment
    guard arguments.count == 2, let model = arguments.first, let prompt = arguments.last,
      let server = environment["POMONA_SERVER"]?.split(separator: ":"), server.count == 2, let port = Int(server[1]),
      let certificates = environment["POMONA_CA"], let token = environment["POMONA_TOKEN"]
    else {
      fatalError("usage: POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN Example MODEL PROMPT")
    }
    try await withGRPCClient(
      transport: .http2NIOPosix(
        target: .dns(host: String(server[0]), port: port),
        transportSecurity: .tls { $0.trustRoots = .certificates([.file(path: certificates, format: .pem)]) },
        serviceConfig: JSONDecoder().decode(ServiceConfig.self, from: Data(serviceConfig.utf8))
      )
    ) { connection in
      let example = Example(
        client: Pomona_GenerationService.Client(wrapping: connection),
        token: ["authorization": .string("Bearer \(token)")],
        prompt: prompt
      )
      print("answer:", try await outcome { try await example.answer(model, within: .seconds(60)) })
      print("cancelled:", try await outcome { try await example.cancelled(model) })
      print("late:", try await outcome { try await example.answer(model, within: .milliseconds(1)) })
      print("refused:", try await outcome { try await example.answer("nothing", within: .seconds(60)) })
    }
  }

  /// Prints the text as it comes.
  func answer(_ model: String, within limit: Duration) async throws {
    var options = CallOptions.defaults
    options.timeout = limit
    try await client.streamGenerate(request(model), metadata: token, options: options) { response in
      for try await message in response.messages {
        switch message.event {
        case .delta(let delta): print(delta.text, terminator: "")
        case .completed(let completed): print("\n\(completed.usage.completionTokens) tokens")
        default: break  // other events, and those of later versions
        }
      }
    }
  }

  /// Ends a call once it has begun, by leaving it, as the end of its task would; the server then computes no further.
  func cancelled(_ model: String) async throws {
    try await client.streamGenerate(request(model), metadata: token) { response in
      for try await _ in response.messages {
        throw CancellationError()
      }
    }
  }

  func request(_ model: String) -> Pomona_StreamGenerateRequest {
    .with {
      $0.model = model
      $0.spec.chat.messages = [
        .with {
          $0.role = .user
          $0.text = prompt
        }
      ]
      $0.spec.sampling.temperature = 0  // unset fields are the model's defaults
      $0.spec.stopping.maxTokens = 12
    }
  }

  /// Tells how a call ended: the status, and the reason and the delay that Pomona sends with it.
  static func outcome(_ call: () async throws -> Void) async throws -> String {
    do {
      try await call()
      return "OK"
    } catch is CancellationError {
      return "CANCELLED"
    } catch let failure as RPCError {
      var told = "\(failure.code)"
      for detail in try failure.unpackGoogleRPCStatus()?.details ?? [] {
        if let info = detail.errorInfo {
          told += " \(info.reason) model=\(info.metadata["model"] ?? "")"
        } else if let retry = detail.retryInfo {
          told += " retry in \(retry.delay)"
        }
      }
      return told
    }
  }
}
