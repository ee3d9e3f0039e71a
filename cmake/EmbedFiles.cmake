# cmake -DOUT=FILE.cc -DFILES=PATH|NAME|TYPE;... -P EmbedFiles.cmake: writes the files as arrays into C++ source, for
# daemon/http/web_files.h.
set(arrays "")
set(entries "")
set(number 0)
foreach(entry IN LISTS FILES)
  string(REPLACE "|" ";" parts "${entry}")
  list(GET parts 0 path)
  list(GET parts 1 name)
  list(GET parts 2 type)
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${bytes}};\n")
  string(APPEND entries "    {\"${name}\", \"${type}\", {reinterpret_cast<const char*>(kFile${number}), sizeof kFile${number}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Made by cmake/EmbedFiles.cmake from the folder web and from Debian's dygraphs.
#include \"daemon/http/web_files.h\"

namespace lgpu::daemon {
namespace {

${arrays}
const WebFile kFiles[] = {
${entries}};

}  // namespace

std::span<const WebFile> WebFiles() { return kFiles; }

}  // namespace lgpu::daemon
")
