//! A client of Pomona in Rust: TLS, a token, retries, a deadline, cancellation and the reason of a failure.
//!
//! POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN pomona-example MODEL PROMPT

use std::error::Error;
use std::time::{Duration, Instant};
use std::{env, fs};

use pomona::generation_service_client::GenerationServiceClient;
use pomona::generation_spec::Input;
use pomona::stream_generate_response::Event;
use pomona::{
    ChatInput, ChatMessage, GenerationSpec, Role, SamplingParams, StoppingParams, StreamGenerateRequest,
    StreamGenerateResponse,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt;

mod pomona {
    tonic::include_proto!("pomona.v1");
}

const MINUTE: Duration = Duration::from_secs(60);
// The retry policy of docs/service_config.json, which tonic does not read.
const MAX_ATTEMPTS: u32 = 4;
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

type Client = GenerationServiceClient<InterceptedService<Channel, Token>>;

/// Goes with every call.
#[derive(Clone)]
struct Token(MetadataValue<Ascii>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [model, prompt] = arguments.as_slice() else {
        return Err("usage: pomona-example MODEL PROMPT".into());
    };
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(fs::read(env::var("POMONA_CA")?)?));
    let endpoint = Endpoint::from_shared(format!("https://{}", env::var("POMONA_SERVER")?))?.tls_config(tls)?;
    let token = Token(format!("Bearer {}", env::var("POMONA_TOKEN")?).parse()?);
    let client = GenerationServiceClient::with_interceptor(endpoint.connect_lazy(), token);

    println!("answer: {}", outcome(answer(&client, model, prompt, MINUTE).await));
    println!("cancelled: {}", cancelled(&client, model, prompt).await?);
    println!("late: {}", outcome(answer(&client, model, prompt, Duration::from_millis(1)).await));
    println!("refused: {}", outcome(answer(&client, "nothing", prompt, MINUTE).await));
    Ok(())
}

/// Prints the text as it comes.
async fn answer(client: &Client, model: &str, prompt: &str, limit: Duration) -> Result<(), Status> {
    let deadline = Instant::now() + limit;
    let (mut next, mut stream) = begin(client, model, prompt, deadline).await?;
    while let Some(response) = next {
        match response.event {
            Some(Event::Delta(delta)) => print!("{}", delta.text),
            Some(Event::Completed(completed)) => {
                println!("\n{} tokens", completed.usage.unwrap_or_default().completion_tokens)
            }
            _ => {} // other events, and those of later versions
        }
        next = within(deadline, stream.message()).await?;
    }
    Ok(())
}

/// Ends a call once it has begun, by dropping it; the server then computes no further. tonic tells nobody: there is no status.
async fn cancelled(client: &Client, model: &str, prompt: &str) -> Result<&'static str, Status> {
    let (first, stream) = begin(client, model, prompt, Instant::now() + MINUTE).await?;
    drop((first, stream));
    Ok("CANCELLED")
}

/// Starts a call and waits for its first message; what fails as UNAVAILABLE until then is tried again, when the server says.
async fn begin(
    client: &Client,
    model: &str,
    prompt: &str,
    deadline: Instant,
) -> Result<(Option<StreamGenerateResponse>, Streaming<StreamGenerateResponse>), Status> {
    let mut backoff = INITIAL_BACKOFF;
    for attempt in 1.. {
        let mut request = Request::new(generation(model, prompt));
        request.set_timeout(deadline.saturating_duration_since(Instant::now())); // the server gives up then, too
        let mut client = client.clone();
        let begun = within(deadline, async {
            let mut stream = client.stream_generate(request).await?.into_inner();
            Ok((stream.message().await?, stream))
        });
        match begun.await {
            Err(failure) if failure.code() == Code::Unavailable && attempt < MAX_ATTEMPTS => {
                let Some(pause) = pause(&failure, backoff) else { return Err(failure) };
                within(deadline, async { Ok(tokio::time::sleep(pause).await) }).await?;
                backoff = MAX_BACKOFF.min(backoff * 2);
            }
            done => return done,
        }
    }
    unreachable!("the last attempt returns")
}

/// Tells how long to wait before another attempt: as the server pushes back; None: there is to be none.
fn pause(failure: &Status, backoff: Duration) -> Option<Duration> {
    match failure.metadata().get("grpc-retry-pushback-ms") {
        None => Some(backoff),
        Some(told) => told.to_str().ok()?.parse().ok().map(Duration::from_millis),
    }
}

/// Bounds a step of a call: the deadline that goes with a request is the server's to keep, this one is ours. Where tonic sees
/// first that the time is over, it says CANCELLED.
async fn within<T>(deadline: Instant, step: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Err(Status::deadline_exceeded("the deadline passed"));
    match tokio::time::timeout_at(deadline.into(), step).await {
        Ok(Err(failure)) if failure.code() == Code::Cancelled && Instant::now() >= deadline => late(),
        done => done.unwrap_or_else(|_| late()),
    }
}

fn generation(model: &str, prompt: &str) -> StreamGenerateRequest {
    let message = ChatMessage { role: Role::User.into(), text: prompt.into(), ..Default::default() };
    StreamGenerateRequest {
        model: model.into(),
        spec: Some(GenerationSpec {
            input: Some(Input::Chat(ChatInput { messages: vec![message], ..Default::default() })),
            sampling: Some(SamplingParams { temperature: Some(0.0), ..Default::default() }), // the rest: the model's defaults
            stopping: Some(StoppingParams { max_tokens: Some(12), ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Tells how a call ended: the status, and the reason and the delay that Pomona sends with it.
fn outcome(result: Result<(), Status>) -> String {
    let Err(failure) = result else { return "OK".into() };
    let mut told = code_name(failure.code()).to_string();
    let details = failure.get_error_details();
    if let Some(info) = details.error_info() {
        told += &format!(" {} model={}", info.reason, info.metadata.get("model").map_or("", String::as_str));
    }
    if let Some(delay) = details.retry_info().and_then(|info| info.retry_delay) {
        told += &format!(" retry in {}s", delay.as_secs_f64());
    }
    told
}

/// Writes a status as the contract and every other language do.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Cancelled => "CANCELLED",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::Unavailable => "UNAVAILABLE",
        _ => "another status",
    }
}
