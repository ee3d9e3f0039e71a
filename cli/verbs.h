#ifndef LGPU_CLI_VERBS_H_
#define LGPU_CLI_VERBS_H_

// Every verb of lgpu in a line, in the order of --help: its name, the word in its functions' names, its
// group. The file cli/commands/NAME.cc has the verb: its flags, what it does (MakeWORDCommand), and its page
// (WORDPage). Help, completion and the man pages are made from these; CMake reads the names here, too.

// clang-format off
#define LGPU_VERBS(X) \
  X("run", Run, kEveryDay) \
  X("exec", Exec, kEveryDay) \
  X("ls", Ls, kEveryDay) \
  X("ps", Ps, kEveryDay) \
  X("top", Top, kEveryDay) \
  X("create", Create, kEveryDay) \
  X("resize", Resize, kEveryDay) \
  X("suspend", Suspend, kEveryDay) \
  X("resume", Resume, kEveryDay) \
  X("rm", Rm, kEveryDay) \
  X("inspect", Inspect, kLookDeeper) \
  X("events", Events, kLookDeeper) \
  X("placements", Placements, kLookDeeper) \
  X("snapshot", Snapshot, kLookDeeper) \
  X("trace", Trace, kLookDeeper) \
  X("explain", Explain, kLookDeeper) \
  X("verify", Verify, kLookDeeper) \
  X("doctor", Doctor, kAdministration) \
  X("trim", Trim, kAdministration) \
  X("env", Env, kAdministration) \
  X("slurm", Slurm, kAdministration) \
  X("completion", Completion, kAdministration) \
  X("version", Version, kAdministration) \
  X("help", Help, kAdministration)
// clang-format on

#endif  // LGPU_CLI_VERBS_H_
