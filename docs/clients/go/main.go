// A client of Pomona in Go: TLS, a token, retries, a deadline, cancellation and the reason of a failure.
//
//	POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN ./example MODEL PROMPT
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pomona "example/pomona/v1"
)

// The retry policy of docs/service_config.json.
const serviceConfig = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s",
  "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}`

// token goes with every call, over TLS only.
type token string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (token) RequireTransportSecurity() bool { return true }

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: example MODEL PROMPT")
	}
	model, prompt := os.Args[1], os.Args[2]
	tls, err := credentials.NewClientTLSFromFile(os.Getenv("POMONA_CA"), "")
	if err != nil {
		log.Fatal(err)
	}
	connection, err := grpc.NewClient(os.Getenv("POMONA_SERVER"),
		grpc.WithTransportCredentials(tls),
		grpc.WithPerRPCCredentials(token(os.Getenv("POMONA_TOKEN"))),
		grpc.WithDefaultServiceConfig(serviceConfig))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pomona.NewGenerationServiceClient(connection)

	fmt.Println("answer:", outcome(answer(client, model, prompt, time.Minute)))
	fmt.Println("cancelled:", outcome(cancelled(client, model, prompt)))
	fmt.Println("late:", outcome(answer(client, model, prompt, time.Millisecond)))
	fmt.Println("refused:", outcome(answer(client, "nothing", prompt, time.Minute)))
}

// answer prints the text as it comes. The context's deadline goes with the call, and leaving it cancels what is left of it.
func answer(client pomona.GenerationServiceClient, model, prompt string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	stream, err := client.StreamGenerate(ctx, request(model, prompt))
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch event := response.Event.(type) {
		case *pomona.StreamGenerateResponse_Delta:
			fmt.Print(event.Delta.Text)
		case *pomona.StreamGenerateResponse_Completed:
			fmt.Printf("\n%d tokens\n", event.Completed.Usage.CompletionTokens)
		}
	}
}

// cancelled ends a call once it has begun; the server then computes no further.
func cancelled(client pomona.GenerationServiceClient, model, prompt string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := client.StreamGenerate(ctx, request(model, prompt))
	if err == nil {
		_, err = stream.Recv()
	}
	for err == nil {
		cancel()
		_, err = stream.Recv()
	}
	return err
}

func request(model, prompt string) *pomona.StreamGenerateRequest {
	temperature, maxTokens := float32(0), uint32(12) // unset fields are the model's defaults
	message := &pomona.ChatMessage{Role: pomona.Role_ROLE_USER, Text: prompt}
	return &pomona.StreamGenerateRequest{Model: model, Spec: &pomona.GenerationSpec{
		Input:    &pomona.GenerationSpec_Chat{Chat: &pomona.ChatInput{Messages: []*pomona.ChatMessage{message}}},
		Sampling: &pomona.SamplingParams{Temperature: &temperature},
		Stopping: &pomona.StoppingParams{MaxTokens: &maxTokens},
	}}
}

// outcome tells how a call ended: the status, and the reason and the delay that Pomona sends with it.
func outcome(err error) string {
	failure := status.Convert(err)
	if failure.Code() == codes.OK {
		return "OK"
	}
	told := codeName(failure.Code())
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			told += fmt.Sprintf(" %s model=%s", detail.Reason, detail.Metadata["model"])
		case *errdetails.RetryInfo:
			told += fmt.Sprintf(" retry in %v", detail.RetryDelay.AsDuration())
		}
	}
	return told
}

// codeName writes a status as the contract and every other language do.
func codeName(code codes.Code) string {
	names := map[codes.Code]string{
		codes.Canceled: "CANCELLED", codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND",
		codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.Unauthenticated: "UNAUTHENTICATED", codes.Unavailable: "UNAVAILABLE",
	}
	if name, known := names[code]; known {
		return name
	}
	return code.String()
}
