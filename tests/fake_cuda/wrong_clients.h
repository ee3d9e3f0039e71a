#ifndef LGPU_TESTS_FAKE_CUDA_WRONG_CLIENTS_H_
#define LGPU_TESTS_FAKE_CUDA_WRONG_CLIENTS_H_

#include <unistd.h>

#include <cstdio>
#include <map>
#include <set>
#include <string>

namespace lgpu::fake_cuda {

/// The mistakes of a client, by the name of the rule that has to catch each.
template <typename Client>
using Wrongs = std::map<std::string, void (Client::*)()>;

/// The main of a program of wrong clients: `--list` prints the names, a name runs that mistake. The exit
/// code. `deadly`: mistakes that kill their contexts, after which nothing can be given back.
template <typename Client>
int RunWrong(const Wrongs<Client>& wrongs, int argc, char** argv, const std::set<std::string>& deadly = {}) {
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const auto& [name, run] : wrongs) std::puts(name.c_str());
    return 0;
  }
  const auto wrong = argc == 2 ? wrongs.find(argv[1]) : wrongs.end();
  if (wrong == wrongs.end()) return 2;
  Client client;
  (client.*wrong->second)();
  if (deadly.contains(wrong->first)) ::_exit(0);
  return 0;
}

}  // namespace lgpu::fake_cuda

#endif  // LGPU_TESTS_FAKE_CUDA_WRONG_CLIENTS_H_
