#ifndef LGPU_DAEMON_HTTP_WEB_FILES_H_
#define LGPU_DAEMON_HTTP_WEB_FILES_H_

#include <span>
#include <string_view>

namespace lgpu::daemon {

/// A file of the page, as the build found it.
struct WebFile {
  const char* path;  // "/page.js"
  const char* type;  // without its character set, which is UTF-8
  std::string_view body;
};

/// All files of the page; they lie in the program itself.
std::span<const WebFile> WebFiles();

}  // namespace lgpu::daemon

#endif  // LGPU_DAEMON_HTTP_WEB_FILES_H_
