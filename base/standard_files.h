#ifndef LGPU_BASE_STANDARD_FILES_H_
#define LGPU_BASE_STANDARD_FILES_H_

#include <fcntl.h>
#include <unistd.h>

namespace lgpu {

/// The parent may have closed some of this process's first three descriptors. Then the next file or
/// socket would get the number, and printed text would go there. Called first in main. A closed output
/// gets a descriptor that cannot be written, so that the loss is an error.
inline void OpenStandardFiles() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) {
      (void)!::open("/dev/null", O_RDONLY);  // the lowest free number, which is this one
    }
  }
}

}  // namespace lgpu

#endif  // LGPU_BASE_STANDARD_FILES_H_
