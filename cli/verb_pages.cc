#include "cli/verb_pages.h"

namespace lgpu::cli {
namespace {

const std::vector<VerbPage>& Pages() {
  static const std::vector<VerbPage> pages = {
      {"",
       "lgpu shows and changes leases of the daemon lgpud. A lease gives programs logical GPUs, each with a "
       "hard memory limit. The answer goes to stdout, notes and errors go to stderr.",
       {{"lgpu ls", "the GPUs and your leases"},
        {"lgpu run -m 2GiB -- python3 train.py", "a program inside a limit of 2 GiB"},
        {"lgpu create -m 4GiB --name train", "a lease that stays until it is removed"},
        {"lgpu doctor", "daemon, rights, GPUs and a self-test"}}},
      {"run",
       "Makes a lease, runs the command inside it, and ends the lease when the command ends. The command "
       "gets "
       "LGPU_LEASE, LGPU_ENDPOINT and CUDA_VISIBLE_DEVICES. A command that sets the last one itself counts "
       "the lease's GPUs, from 0. Signals are passed on. A command that never "
       "attaches "
       "to the lease is not limited; a line on stderr then says so.",
       {{"lgpu run -m 2GiB -- python3 train.py", "one logical GPU of 2 GiB"},
        {"lgpu run -n 2 -m 25% -- ./towers", "two logical GPUs, each a quarter of its card"},
        {"lgpu run -m 8GiB --preallocate --wait=10m -- ./job",
         "set 8 GiB aside; wait up to 10 minutes for them"},
        {"lgpu run -m 1GiB -e SEED=7 -e HOME -- ./job", "set one variable, pass another one through"}}},
      {"exec",
       "Runs the command inside a lease that exists, beside the programs that are in it; they share its "
       "limit. The lease stays when the command ends. Variables, signals, notes and exit codes are those of "
       "`lgpu run`. --require-attach counts the programs that attach while the command runs.",
       {{"lgpu exec train -- python3 train.py", "a program inside the lease train"},
        {"lgpu exec \"$LGPU_LEASE\" -- ./job", "inside the lease of this shell"}}},
      {"ls",
       "Shows the GPUs, then a row for every logical device. A lease is shown by its name, one of another "
       "user "
       "as OWNER/NAME, a long name by its id: rm, resize and inspect take these words. The row (others) "
       "shows "
       "the memory of leases that you may not see. Columns that do not fit into the terminal are left "
       "out; -v shows all.",
       {{"lgpu ls --watch", "redraw every 2 seconds"},
        {"lgpu ls --by-user", "sums over the leases of every user"},
        {"lgpu ls --query lease,held,limit --format=csv,nounits", "for scripts"}}},
      {"ps",
       "Shows a row for every process that is attached to a lease, then the processes outside lgpu that use "
       "the "
       "GPUs, where the driver tells.",
       {{"lgpu ps --lease train", "the processes of one lease"}}},
      {"top",
       "Shows what ls shows live on the whole terminal: a bar for every GPU, a row for every logical device "
       "with "
       "its ops and allocations per second, the requests that wait, and the last events. Enter shows the "
       "lease of "
       "the chosen row in full, h the keys. Without a terminal, or on one of less than 80 x 16, it prints "
       "once, as "
       "with --once.",
       {{"lgpu top", "the keys are shown by h"},
        {"lgpu top --once --ascii", "for a log"},
        {"lgpu top -i 5 --readonly", "every 5 seconds, and no key ends a lease"}}},
      {"create",
       "Makes a lease that stays until it is removed. Programs use it through LGPU_LEASE, any number at a "
       "time. "
       "The id of the lease is printed on stdout.",
       {{"lgpu create -m 4GiB --name train", "growth up to 4 GiB"},
        {"export LGPU_LEASE=$(lgpu create -q -m 2GiB)", "for the programs of this shell"},
        {"lgpu create -m 8GiB --preallocate --end-when-idle 2h", "it ends after two hours without a program"},
        {"lgpu create -m 8GiB --name job-7 --managed --owner anna --ttl 12h",
         "as root: anna's programs attach, and only root changes it"},
        {"lgpu create -m 1TiB; echo $?", "more than any card has: exit code 2 at once, with --wait too"}}},
      {"resize",
       "Changes limits or guarantees of a lease while its programs run. Where more is held than a lower "
       "limit "
       "allows, nothing is granted until less is held.",
       {{"lgpu resize train -m 6GiB", "all logical devices of the lease"},
        {"lgpu resize train -d GPU:1 -m max", "one logical device, all that its card can give"}}},
      {"rm",
       "Ends leases. Their programs are told and get no more memory. With --kill lgpu also ends the "
       "programs: "
       "all "
       "that have a session of the lease, by SIGTERM, and by SIGKILL after a grace. Every lease is tried; "
       "the "
       "exit code is that of the first failure.",
       {{"lgpu rm train", "by name"},
        {"lgpu rm --kill --grace 30s train", "with its programs"},
        {"lgpu rm l-0badcafe anna/train", "by id, and the lease of another user"},
        {"lgpu rm --all", "every lease of yours, after a question"},
        {"lgpu rm --if-exists --wait=30s job-7",
         "for scripts that may run twice, until the memory is back"}}},
      {"trim",
       "Asks the programs of leases to give back memory that no tensor of theirs uses, and says for each "
       "lease "
       "how "
       "much came back. Programs have the time of --timeout to answer; a program that does not answer is "
       "named on stderr and keeps its memory. Preallocated devices keep their memory. Programs also give "
       "idle memory back by themselves: when a request is short of memory, and after some seconds.",
       {{"lgpu trim train", "one lease"},
        {"lgpu trim --idle-for 10m",
         "all leases that you see and that ran no op and made no copy for 10 minutes"}}},
      {"inspect",
       "Shows one lease with its devices, processes, last events and memory maps, or one GPU.",
       {{"lgpu inspect train", "a lease"}, {"lgpu inspect 0", "GPU 0"}}},
      {"env",
       "Shows the variables that put a shell's or a service's programs into a lease, programs "
       "that know "
       "nothing of lgpu included. For `lgpu run` nothing of this is needed. Programs that clear their "
       "variables, or have the driver's folder in a DT_RPATH, need `lgpu run --isolate`: variables do "
       "not reach them.",
       {{"eval \"$(lgpu env train)\"", "this shell and the programs that it starts"},
        {"lgpu env train --format json", "for scripts"},
        {"lgpu env train --format cdi > lgpu-train.json && mv lgpu-train.json /etc/cdi/",
         "as root: for `podman run --device lgpu.io/lease=train`"}}},
      {"slurm",
       "Prints the lines of gres.conf for the GPUs that this node serves, and as a comment the lines of "
       "slurm.conf. A job then asks for memory as --gres=shard:8192, in MiB.",
       {{"lgpu slurm gres --node $(hostname -s) --overhead 2GiB",
         "keep 2 GiB of each GPU for contexts and libraries"}}},
      {"placements",
       "Shows on which device the ops of a lease ran, as the daemon recorded them.",
       {{"lgpu placements train --follow", "every op, as it runs"}}},
      {"snapshot",
       "Writes every block that the programs of a lease have: its place, size and age, and the op that owns "
       "it. Programs go on while lgpud asks them; a program that does not answer is left out.",
       {{"lgpu snapshot train -o train.json", "as JSON"},
        {"lgpu snapshot train --format pickle -o train.pickle", "for PyTorch's memory viewer"}}},
      {"trace",
       "Writes the ops of a lease, its memory and its events as a trace that Perfetto and chrome://tracing "
       "show: "
       "the records that lgpud has kept, and with --duration new ones.",
       {{"lgpu trace train -o train.json", "the records that lgpud has kept"},
        {"lgpu trace train --duration 10s -o train.json", "and the next ten seconds"}}},
      {"explain",
       "Shows where an op would run and by which rule. Nothing runs.",
       {{"lgpu explain MatMul -d GPU:1", "MatMul where GPU:1 is asked for"}}},
      {"events",
       "Shows what happened in the daemon: leases made and ended, sessions, refusals.",
       {{"lgpu events -f --lease train", "follow one lease"}}},
      {"verify",
       "Allocates on every logical device of the lease until it is refused, and compares the figures with "
       "those of the daemon. With --driver a program that knows the CUDA driver alone tries to take more "
       "than "
       "the limit by every kind of call. Exit code 0 only if the limit holds.",
       {{"lgpu run -m 64MiB -- lgpu verify", "a limit made for the test"},
        {"lgpu run -m 64MiB -- lgpu verify --driver", "the same for programs that know nothing of lgpu"}}},
      {"doctor",
       "Checks the daemon, your rights, the GPUs, variables and the daemon's ledger, and runs a self-test. "
       "Exit "
       "code 1 if a check failed.",
       {{"lgpu doctor -v", "with all values in effect and where each comes from"}}},
      {"completion",
       "Prints a script that completes verbs, flags and the names of leases and GPUs.",
       {{"source <(lgpu completion bash)", "in ~/.bashrc"}}},
      {"version",
       "Shows the version of lgpu and, where one answers, of the daemon.",
       {{"lgpu version --json", "for scripts"}}},
      {"help", "Shows the verbs, or the flags of one verb.", {{"lgpu help run", "the flags of run"}}},
  };
  return pages;
}

}  // namespace

const std::vector<VerbGroup>& VerbGroups() {
  static const std::vector<VerbGroup> groups = {
      {"Every day", {"run", "exec", "ls", "ps", "top", "create", "resize", "rm"}},
      {"Look deeper", {"inspect", "events", "placements", "snapshot", "trace", "explain", "verify"}},
      {"Administration", {"doctor", "trim", "env", "slurm", "completion", "version", "help"}}};
  return groups;
}

const VerbPage* FindVerbPage(std::string_view verb) {
  for (const VerbPage& page : Pages()) {
    if (verb == page.verb) return &page;
  }
  return nullptr;
}

}  // namespace lgpu::cli
