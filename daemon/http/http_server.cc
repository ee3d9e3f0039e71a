#include "daemon/http/http_server.h"

#include <httplib.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "allocator/broker/session_releases.h"
#include "base/thread.h"
#include "daemon/http/http_address.h"
#include "daemon/http/http_answers.h"
#include "daemon/http/http_api.h"
#include "daemon/http/http_connections.h"
#include "daemon/http/metrics.h"
#include "daemon/http/web_files.h"
#include "lgpu/status.h"

namespace lgpu::daemon {
namespace {

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
// The page runs its own scripts alone (its charts write style attributes), talks to its own server alone, and
// stands in no frame.
constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' "
    "data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// In a time that does not tell how much of it is right.
bool SameToken(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference = static_cast<unsigned char>(
        difference | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i])));
  }
  return difference == 0;
}

// The scheme is a word in any case; the token is not.
bool HasToken(const std::string& authorization, const std::string& token) {
  const std::size_t blank = authorization.find(' ');
  return blank != std::string::npos && absl::EqualsIgnoreCase(authorization.substr(0, blank), "Bearer") &&
         SameToken(std::string(absl::StripAsciiWhitespace(authorization.substr(blank))), token);
}

// Of an answer that the library made itself.
absl::Status WhyOf(int status, const httplib::Request& request) {
  switch (status) {
    case 404:
      return absl::NotFoundError(absl::StrCat("no page ", request.path.substr(0, 200),
                                              "; there are /, /metrics, /healthz, /readyz and /api/v1/..."));
    case 413:
      return absl::InvalidArgumentError("the body of the request is too long; GET needs none");
    case 414:
      return absl::InvalidArgumentError("the address of the page is too long");
    case 416:
      return absl::InvalidArgumentError("the header Range asks for what the page does not have");
    default:
      return status < 500 ? absl::InvalidArgumentError("this is no request that HTTP/1.1 has")
                          : absl::InternalError("the page could not be made");
  }
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const Services& services, std::string token) : services_(services), token_(std::move(token)) {}
  ~Impl() { Stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// `show_users`: every reader sees everything; so does each reader with the token.
  absl::Status Start(const HttpAddress& address, bool show_users) {
    LGPU_ASSIGN_OR_RETURN(api_, HttpApi::Start({.stats = services_.stats,
                                                .leases = services_.leases,
                                                .events = services_.events,
                                                .snapshots = services_.snapshots,
                                                .backend = services_.backend,
                                                .sees_all = show_users || !token_.empty()}));
    Configure(address);
    const int port = address.port == 0
                         ? server_.bind_to_any_port(address.host)
                         : (server_.bind_to_port(address.host, address.port) ? address.port : -1);
    if (port <= 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address.host, ":", address.port,
                                                 " for HTTP: it is taken, or no address of this machine"));
    }
    LGPU_RETURN_IF_ERROR(server_.Prepare());
    const bool six = absl::StrContains(address.host, ":");
    address_ = absl::StrCat(six ? "[" : "", address.host, six ? "]:" : ":", port);
    LGPU_ASSIGN_OR_RETURN(thread_, Thread::Start("lgpud-http", [this] {
                            server_.listen_after_bind();
                            if (!stopped_) {
                              spdlog::error("HTTP has ended: {} cannot be listened on any more", address_);
                            }
                            ended_ = true;
                          }));
    // Before it runs, it cannot be stopped.
    while (!server_.is_running() && !ended_) std::this_thread::yield();
    return absl::OkStatus();
  }

  void Stop() {
    ready_ = false;
    stopped_ = true;
    server_.Stop();
    thread_.Join();
    if (api_ != nullptr) api_->Stop();
  }

  const std::string& address() const { return address_; }

 private:
  void Configure(const HttpAddress& address) {
    // httplib's default, SO_REUSEPORT, would let another server of the same user take the same port.
    server_.set_socket_options([](int socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    server_.set_payload_max_length(4096);
    server_.set_pre_routing_handler([this, local = address.loopback](const auto& request, auto& response) {
      return Admit(request, response, local);
    });
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (response.body.empty()) Fail(response, response.status, WhyOf(response.status, request));
    });
    Get("/metrics", [this](const auto&, auto& response) { response.set_content(Metrics(), kMetricsType); });
    Get("/healthz", [](const auto&, auto& response) { response.set_content("ok\n", "text/plain"); });
    Get("/readyz", [this](const auto&, auto& response) {
      response.status = ready_ ? 200 : 503;
      response.set_content(ready_ ? "ready\n" : "stopping\n", "text/plain");
    });
    api_->AddTo(server_);
    server_.set_default_headers({{"Cache-Control", "no-store"},
                                 {"Content-Security-Policy", kPagePolicy},
                                 {"Cross-Origin-Resource-Policy", "same-origin"},
                                 {"Referrer-Policy", "no-referrer"},
                                 {"X-Content-Type-Options", "nosniff"}});
    for (const WebFile& file : WebFiles()) {
      Get(file.path, [&file](const auto&, auto& response) {
        const bool is_text = absl::StartsWith(file.type, "text/");
        response.set_content(file.body.data(), file.body.size(),
                             absl::StrCat(file.type, is_text ? "; charset=utf-8" : ""));
      });
    }
  }

  /// What says nothing of the machine: the page's own files, and whether the daemon is there.
  static bool IsOpen(const std::string& path) {
    const auto files = WebFiles();
    return path == "/healthz" || path == "/readyz" ||
           std::any_of(files.begin(), files.end(),
                       [&path](const WebFile& file) { return path == file.path; });
  }

  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  void Get(const std::string& path, Handler handler) { server_.Get(path, std::move(handler)); }

  httplib::Server::HandlerResponse Admit(const httplib::Request& request, httplib::Response& response,
                                         bool local) const {
    using Response = httplib::Server::HandlerResponse;
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      Fail(response, 405, absl::UnimplementedError("this port only answers GET"));
      return Response::Handled;
    }
    if (!token_.empty() && !IsOpen(request.path) &&
        !HasToken(request.get_header_value("Authorization"), token_)) {
      response.set_header("WWW-Authenticate", "Bearer");
      Fail(response, 401, absl::UnauthenticatedError("this needs the header Authorization: Bearer TOKEN"));
      return Response::Handled;
    }
    // A page of another site must not read this one by a name of its own for 127.0.0.1.
    if (local && token_.empty() && !NamesLoopback(request.get_header_value("Host"))) {
      Fail(response, 403, absl::PermissionDeniedError("the header Host names no loopback address"));
      return Response::Handled;
    }
    // A browser says where a request comes from; a page of another site has no business here, even if it
    // cannot read the answer.
    if (absl::StartsWith(request.path, "/api/") &&
        request.get_header_value("Sec-Fetch-Site") == "cross-site") {
      Fail(response, 403, absl::PermissionDeniedError("this request comes from a page of another site"));
      return Response::Handled;
    }
    return Response::Unhandled;
  }

  std::string Metrics() {
    return MetricsText(services_.stats.Snapshot(root_), {.backend = services_.backend,
                                                         .events = services_.events.counts(),
                                                         .ended = services_.leases.end_counts(),
                                                         .ops = services_.leases.op_counts(),
                                                         .grants = services_.grants.Read(),
                                                         .suspensions = services_.suspender.counters(),
                                                         .giving_way = services_.broker.releases().counters(),
                                                         .names_owners = services_.names_owners});
  }

  const Services services_;
  const std::string token_;
  const Caller root_{};  // sees all
  std::unique_ptr<HttpApi> api_;
  BoundedServer server_{BoundedServer::Bounds{}};
  std::string address_;
  std::atomic<bool> ready_ = true;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> stopped_ = false;
  Thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpConfig& config,
                                                              const Services& services) {
  LGPU_RETURN_IF_ERROR(CheckHttpListen(config));
  LGPU_ASSIGN_OR_RETURN(const HttpAddress address, ParseHttpAddress(config.listen));
  LGPU_ASSIGN_OR_RETURN(std::string token, ReadHttpToken(config.token_file));
  auto impl = std::make_unique<Impl>(services, std::move(token));
  LGPU_RETURN_IF_ERROR(impl->Start(address, config.show_users));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace lgpu::daemon
