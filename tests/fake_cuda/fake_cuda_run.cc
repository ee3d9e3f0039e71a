// fake_cuda_run [OPTION VALUE ...] -- PROGRAM ...: runs a program on a machine with fake GPUs. Its exit code
// is the program's, or 3 if that or a child of it broke a rule of the driver.
//
//   --cards N             2 by default
//   --memory SIZE         of each card
//   --context SIZE        of a card's first context
//   --context-step SIZE   by which each further context is larger than the one before
//   --first-module SIZE   what a context takes with its first module
//   --first-create SIZE   what a process without a context takes with its first cuMemCreate
//   --nvml-late N         NVML shows what it found N calls ago
//   --pageable on         cards read pageable memory of the host
//   --peers on            cards can read each other's memory
//   --driver VERSION      11040 is CUDA 11.4
//   --fail CALL=RESULT    every such call fails
//   --hold kernels        kernels never end
//   --checkpoint FAULT    of the checkpoint calls: lock-kills, lock-hangs, restore-hangs, refuses-shared
//   --rules off           for programs that are not lgpu's

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/spawn.h"
#include "tests/fake_cuda/fake_machine.h"

int main(int argc, char** argv) {
  using lgpu::fake_cuda::FakeMachine;
  int cards = 2;
  FakeMachine::CardOptions card;
  const std::map<std::string, lgpu::Bytes*> sizes = {{"--memory", &card.total},
                                                     {"--context", &card.context},
                                                     {"--context-step", &card.context_step},
                                                     {"--first-module", &card.first_module},
                                                     {"--first-create", &card.first_create}};
  std::map<std::string, bool> checkpoint_faults = {
      {"lock-kills", false}, {"lock-hangs", false}, {"restore-hangs", false}, {"refuses-shared", false}};
  int driver = 0;
  int nvml_late = 0;
  bool pageable = false;
  bool peers = false;
  bool hold = false;
  bool any_program = false;
  std::vector<std::string> faults;
  int at = 1;
  for (; at + 1 < argc && std::string(argv[at]) != "--"; at += 2) {
    const std::string option = argv[at];
    if (option == "--cards") {
      cards = std::atoi(argv[at + 1]);
    } else if (const auto size = sizes.find(option); size != sizes.end()) {
      const auto bytes = lgpu::ParseBytes(argv[at + 1]);
      if (!bytes.ok()) break;
      *size->second = *bytes;
    } else if (option == "--nvml-late") {
      nvml_late = std::atoi(argv[at + 1]);
    } else if (option == "--pageable") {
      pageable = std::string(argv[at + 1]) == "on";
    } else if (option == "--peers") {
      peers = std::string(argv[at + 1]) == "on";
    } else if (option == "--driver") {
      driver = std::atoi(argv[at + 1]);
    } else if (const std::string fault = argv[at + 1]; option == "--fail" && fault.find('=') != fault.npos) {
      faults.push_back(fault);
    } else if (option == "--hold") {
      hold = std::string(argv[at + 1]) == "kernels";
    } else if (option == "--checkpoint") {
      const auto fault_of = checkpoint_faults.find(argv[at + 1]);
      if (fault_of == checkpoint_faults.end()) break;
      fault_of->second = true;
    } else if (option == "--rules") {
      any_program = std::string(argv[at + 1]) == "off";
    } else {
      break;
    }
  }
  if (at + 1 >= argc || std::string(argv[at]) != "--" || cards < 0) {
    std::fprintf(stderr,
                 "usage: fake_cuda_run [--cards N] [--memory SIZE] [--context SIZE] [--context-step SIZE] "
                 "[--first-module SIZE] [--first-create SIZE] [--nvml-late N] [--pageable on] [--peers on] "
                 "[--driver VERSION] [--fail CALL=RESULT] [--hold kernels] [--checkpoint FAULT] "
                 "[--rules off] -- PROGRAM [ARGUMENT ...]\n");
    return 2;
  }
  FakeMachine machine(std::vector<FakeMachine::CardOptions>(static_cast<std::size_t>(cards), card));
  if (driver != 0) machine.state().driver_version = driver;
  machine.state().nvml_late = nvml_late;
  machine.state().reads_pageable = pageable;
  machine.state().peers = peers;
  machine.state().hold_kernels = hold;
  machine.state().any_program = any_program;
  machine.state().lock_kills = checkpoint_faults["lock-kills"];
  machine.state().lock_hangs = checkpoint_faults["lock-hangs"];
  machine.state().restore_hangs = checkpoint_faults["restore-hangs"];
  machine.state().checkpoint_refuses_shared = checkpoint_faults["refuses-shared"];
  for (const std::string& fault : faults) {
    const std::size_t equals = fault.find('=');
    machine.FailCall(fault.substr(0, equals), std::atoi(fault.c_str() + equals + 1), 0, -1);
  }
  auto program = lgpu::SpawnedProcess::Start(
      {.argv = std::vector<std::string>(argv + at + 1, argv + argc), .environment = machine.environment()});
  if (!program.ok()) {
    std::fprintf(stderr, "%s: %s\n", argv[at + 1], std::string(program.status().message()).c_str());
    return 2;
  }
  const int code = program->Wait();
  const auto violations = machine.TakeViolations();
  for (const lgpu::fake_cuda::Violation& violation : violations) {
    std::fprintf(stderr, "pid %d broke the rule %s: %s\n", violation.pid, violation.rule, violation.text);
  }
  return code == 0 && !violations.empty() ? 3 : code;
}
