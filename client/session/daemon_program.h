#ifndef LGPU_CLIENT_SESSION_DAEMON_PROGRAM_H_
#define LGPU_CLIENT_SESSION_DAEMON_PROGRAM_H_

#include <string>
#include <vector>

namespace lgpu {

/// How a user calls lgpud: "lgpud" where a folder of `search_path` (as PATH has it) has the program, else its
/// path in the first of `folders` that has it, else "lgpud".
std::string DaemonProgram(const std::string& search_path, const std::vector<std::string>& folders);

/// The same for this process: beside its program, and in the folder bin beside the folder of liblgpu. A
/// Python wheel has lgpud there, and PATH has it only in an activated environment.
std::string DaemonProgramOfThisProcess();

}  // namespace lgpu

#endif  // LGPU_CLIENT_SESSION_DAEMON_PROGRAM_H_
