#include "daemon/http/http_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "lgpu/status.h"

namespace lgpu::daemon {

bool IsLoopback(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  if (host == "localhost") return true;
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24U) == 127;
  return ::inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

bool NamesLoopback(const std::string& host_header) {
  const bool is_bracketed = absl::StartsWith(host_header, "[");
  const std::size_t end = is_bracketed ? host_header.find(']') : host_header.find(':');
  if (is_bracketed && end == std::string::npos) return false;
  const std::string host = is_bracketed ? host_header.substr(1, end - 1) : host_header.substr(0, end);
  absl::string_view rest = host_header;
  rest.remove_prefix(is_bracketed ? end + 1 : host.size());
  const bool has_port = absl::ConsumePrefix(&rest, ":");
  const bool is_port = std::all_of(rest.begin(), rest.end(),
                                   [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
  return (has_port ? is_port : rest.empty()) && IsLoopback(absl::AsciiStrToLower(host));
}

absl::StatusOr<HttpAddress> ParseHttpAddress(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  HttpAddress address;
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  if (colon == 0 || !absl::SimpleAtoi(port, &address.port) || address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not ADDRESS:PORT; write, say, 127.0.0.1:9400, or 9400 for the same address"));
  }
  address.host = colon == std::string::npos ? "127.0.0.1" : text.substr(0, colon);
  if (address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  address.loopback = IsLoopback(address.host);
  return address;
}

absl::StatusOr<std::string> ReadHttpToken(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::string token;
  if (!file || !std::getline(file, token)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read a token from http.token_file ", path,
                                                   "; try: openssl rand -hex 16 > ", path));
  }
  token = std::string(absl::StripAsciiWhitespace(token));
  if (token.size() < 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token in ", path, " is shorter than 16 characters; try: openssl rand -hex 16"));
  }
  return token;
}

absl::Status CheckHttpListen(const HttpConfig& config) {
  if (config.listen.empty()) return absl::OkStatus();
  LGPU_ASSIGN_OR_RETURN(const HttpAddress address, ParseHttpAddress(config.listen));
  if (address.loopback || !config.token_file.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("HTTP on ", config.listen,
                                                 " can be reached from other machines and needs ",
                                                 "http.token_file; or listen on 127.0.0.1"));
}

}  // namespace lgpu::daemon
