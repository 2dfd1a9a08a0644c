package dev.pomona.example;

import com.google.gson.Gson;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.pomona.v1.ChatInput;
import dev.pomona.v1.ChatMessage;
import dev.pomona.v1.GenerationServiceGrpc;
import dev.pomona.v1.GenerationServiceGrpc.GenerationServiceBlockingStub;
import dev.pomona.v1.GenerationSpec;
import dev.pomona.v1.Role;
import dev.pomona.v1.SamplingParams;
import dev.pomona.v1.StoppingParams;
import dev.pomona.v1.StreamGenerateRequest;
import dev.pomona.v1.StreamGenerateResponse;
import io.grpc.CallCredentials;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import java.io.File;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

/**
 * A client of Pomona in Java: TLS, a token, retries, a deadline, cancellation and the reason of a failure.
 *
 * <p>POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN java -cp 'target/*:target/lib/*' dev.pomona.example.Example MODEL PROMPT
 */
public final class Example {
  /** The retry policy of docs/service_config.json. */
  private static final String SERVICE_CONFIG =
      """
      {"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s",
        "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}
      """;

  private static final long MINUTE_MS = 60_000;

  private final GenerationServiceBlockingStub client;
  private final String prompt;

  private Example(GenerationServiceBlockingStub client, String prompt) {
    this.client = client;
    this.prompt = prompt;
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 2) {
      throw new IllegalArgumentException("usage: Example MODEL PROMPT");
    }
    String model = arguments[0];
    var tls = TlsChannelCredentials.newBuilder().trustManager(new File(System.getenv("POMONA_CA"))).build();
    @SuppressWarnings("unchecked")
    Map<String, ?> serviceConfig = new Gson().fromJson(SERVICE_CONFIG, Map.class);
    ManagedChannel channel =
        Grpc.newChannelBuilder(System.getenv("POMONA_SERVER"), tls)
            .defaultServiceConfig(serviceConfig)
            .enableRetry()
            .build();
    var client =
        GenerationServiceGrpc.newBlockingStub(channel).withCallCredentials(new Token(System.getenv("POMONA_TOKEN")));
    var example = new Example(client, arguments[1]);
    try {
      System.out.println("answer: " + outcome(() -> example.answer(model, MINUTE_MS)));
      System.out.println("cancelled: " + outcome(() -> example.cancelled(model)));
      System.out.println("late: " + outcome(() -> example.answer(model, 1)));
      System.out.println("refused: " + outcome(() -> example.answer("nothing", MINUTE_MS)));
    } finally {
      channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
    }
  }

  /** Prints the text as it comes. */
  private void answer(String model, long limitMs) {
    var responses = client.withDeadlineAfter(limitMs, TimeUnit.MILLISECONDS).streamGenerate(request(model));
    while (responses.hasNext()) {
      StreamGenerateResponse response = responses.next();
      switch (response.getEventCase()) {
        case DELTA -> System.out.print(response.getDelta().getText());
        case COMPLETED ->
            System.out.printf("%n%d tokens%n", response.getCompleted().getUsage().getCompletionTokens());
        default -> {} // other events, and those of later versions
      }
    }
  }

  /** Ends a call once it has begun, by the context that it runs in; the server then computes no further. */
  private void cancelled(String model) {
    try (var context = Context.current().withCancellation()) {
      context.run(
          () -> {
            Iterator<StreamGenerateResponse> responses =
                client.withDeadlineAfter(MINUTE_MS, TimeUnit.MILLISECONDS).streamGenerate(request(model));
            while (responses.hasNext()) {
              responses.next();
              context.cancel(null);
            }
          });
    }
  }

  private StreamGenerateRequest request(String model) {
    var message = ChatMessage.newBuilder().setRole(Role.ROLE_USER).setText(prompt);
    var spec =
        GenerationSpec.newBuilder()
            .setChat(ChatInput.newBuilder().addMessages(message))
            .setSampling(SamplingParams.newBuilder().setTemperature(0)) // unset fields are the model's defaults
            .setStopping(StoppingParams.newBuilder().setMaxTokens(12));
    return StreamGenerateRequest.newBuilder().setModel(model).setSpec(spec).build();
  }

  /** Tells how a call ended: the status, and the reason and the delay that Pomona sends with it. */
  private static String outcome(Runnable call) throws InvalidProtocolBufferException {
    try {
      call.run();
      return "OK";
    } catch (StatusRuntimeException failure) {
      var told = new StringBuilder(failure.getStatus().getCode().name());
      for (Any detail : StatusProto.fromThrowable(failure).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          told.append(" ").append(info.getReason()).append(" model=").append(info.getMetadataMap().get("model"));
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          told.append(" retry in ").append(delay.getSeconds() + delay.getNanos() / 1e9).append("s");
        }
      }
      return told.toString();
    }
  }

  /** Goes with every call. */
  private static final class Token extends CallCredentials {
    private static final Metadata.Key<String> KEY =
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private final String token;

    Token(String token) {
      this.token = token;
    }

    @Override
    public void applyRequestMetadata(RequestInfo request, Executor executor, MetadataApplier applier) {
      var metadata = new Metadata();
      metadata.put(KEY, "Bearer " + token);
      applier.apply(metadata);
    }
  }
}
