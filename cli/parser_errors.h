#ifndef LGPU_CLI_PARSER_ERRORS_H_
#define LGPU_CLI_PARSER_ERRORS_H_

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace lgpu::cli {

/// The parser's error in lgpu's words: "lgpu resize needs LEASE" for "lease is required". `app`: as the
/// parser left it.
std::string PlainParserError(const CLI::ParseError& error, const CLI::App& app);

}  // namespace lgpu::cli

#endif  // LGPU_CLI_PARSER_ERRORS_H_
