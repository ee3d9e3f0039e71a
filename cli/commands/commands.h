#ifndef LGPU_CLI_COMMANDS_COMMANDS_H_
#define LGPU_CLI_COMMANDS_COMMANDS_H_

#include <memory>

#include "cli/commands/command.h"

namespace lgpu::cli {

// The verbs of lgpu. Each is in the .cc file of its name.

/// `lgpu completion SHELL`: the completion script of a shell.
std::unique_ptr<Command> MakeCompletionCommand();
/// `lgpu create`: a lease that lasts until `lgpu rm`, owned by the user that makes it.
std::unique_ptr<Command> MakeCreateCommand();
/// `lgpu doctor`: checks of the daemon, rights, GPUs and variables, with a self-test.
std::unique_ptr<Command> MakeDoctorCommand();
/// `lgpu env LEASE`: the variables that put a shell's or a service's programs into a lasting lease.
std::unique_ptr<Command> MakeEnvCommand();
/// `lgpu events`: the daemon's events.
std::unique_ptr<Command> MakeEventsCommand();
/// `lgpu exec LEASE -- CMD`: a command inside a lease that exists.
std::unique_ptr<Command> MakeExecCommand();
/// `lgpu explain OP`: the device on which an op would run, and the rule for it.
std::unique_ptr<Command> MakeExplainCommand();
/// `lgpu help [VERB]`: the text of --help; with --json the table of all flags.
std::unique_ptr<Command> MakeHelpCommand();
/// `lgpu inspect LEASE|GPU`: everything about one of them.
std::unique_ptr<Command> MakeInspectCommand();
/// `lgpu ls`: the cards and the leases with their logical devices.
std::unique_ptr<Command> MakeLsCommand();
/// `lgpu placements LEASE`: the devices on which the ops of a lease ran.
std::unique_ptr<Command> MakePlacementsCommand();
/// `lgpu ps`: the processes that are attached to leases, and other processes on the GPUs.
std::unique_ptr<Command> MakePsCommand();
/// `lgpu resize LEASE`: new limits while its programs run.
std::unique_ptr<Command> MakeResizeCommand();
/// `lgpu rm LEASE`: ends a lease; its sessions are told and lose their rights.
std::unique_ptr<Command> MakeRmCommand();
/// `lgpu run -m SIZE -- CMD`: a command inside a lease that lives as long as the command and its children.
std::unique_ptr<Command> MakeRunCommand();
/// `lgpu slurm gres`: Slurm's configuration of this node's GPUs.
std::unique_ptr<Command> MakeSlurmCommand();
/// `lgpu snapshot LEASE`: every block of a lease's programs, for other tools.
std::unique_ptr<Command> MakeSnapshotCommand();
/// `lgpu top`: the contents of `ls`, live on the whole terminal.
std::unique_ptr<Command> MakeTopCommand();
/// `lgpu trace LEASE`: the ops of a lease, its memory and its events, as a trace for Perfetto.
std::unique_ptr<Command> MakeTraceCommand();
/// `lgpu trim [LEASE...]`: asks programs to give back idle memory.
std::unique_ptr<Command> MakeTrimCommand();
/// `lgpu verify`: tries to exceed the limit of a lease.
std::unique_ptr<Command> MakeVerifyCommand();
/// `lgpu version`: of this program, and of the daemon if one answers.
std::unique_ptr<Command> MakeVersionCommand();

}  // namespace lgpu::cli

#endif  // LGPU_CLI_COMMANDS_COMMANDS_H_
