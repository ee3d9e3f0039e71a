#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <sstream>

#include "lgpu/refusal.h"
#include "lgpu/status.h"
#include "tests/contract/device_backend_contract.h"

namespace lgpu {
namespace {

void SendDescriptor(int socket, int fd) {
  char byte = 'f';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  EXPECT_EQ(sendmsg(socket, &message, MSG_NOSIGNAL), 1);
}

UniqueFd ReceiveDescriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr) {
    return UniqueFd();
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
  return UniqueFd(fd);
}

std::string Say(const absl::Status& status) {
  if (const std::optional<Refusal> refusal = GetRefusal(status)) {
    return "refused: " + std::string(RefusalReasonName(refusal->reason));
  }
  return status.ok() ? "ok" : "error: " + std::string(status.message());
}

class Peer {
 public:
  Peer(const DeviceBackendFactory& factory, int socket) : backend_(factory.make()), socket_(socket) {}

  std::string Obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    std::uint64_t number = 0;
    words >> command >> number;
    if (command == "import") return Say(Import(Bytes(number)));
    if (command == "fill") return Say(Fill(static_cast<int>(number)));
    if (command == "check") return Check(static_cast<int>(number));
    if (command == "release") return Say(Release());
    if (command == "grow") return TryToGrow();
    if (command == "descriptors") return Say(RunOutOfDescriptors());
    if (command == "mappings") return Say(RunOutOfMappings());
    return "unknown command";
  }

 private:
  absl::Status Import(Bytes bytes) {
    UniqueFd fd = ReceiveDescriptor(socket_);
    kept_ = UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    bytes_ = bytes;
    LGPU_ASSIGN_OR_RETURN(memory_, backend_->Import(0, std::move(fd), bytes));
    LGPU_ASSIGN_OR_RETURN(stream_, backend_->CreateStream(0, 0));
    LGPU_ASSIGN_OR_RETURN(base_, backend_->Reserve(0, bytes));
    LGPU_RETURN_IF_ERROR(backend_->Map(base_, memory_));
    return backend_->SetAccess(base_, bytes);
  }
  absl::Status Fill(int value) {
    const std::vector<char> data(bytes_.count(), static_cast<char>(value));
    LGPU_RETURN_IF_ERROR(backend_->CopyToDevice(stream_, base_, data.data(), bytes_));
    LGPU_ASSIGN_OR_RETURN(const Fence fence, backend_->Record(stream_));
    return backend_->Wait(fence);
  }
  std::string Check(int value) {
    std::vector<char> data(bytes_.count());
    const absl::Status status = backend_->CopyToHost(stream_, data.data(), base_, bytes_);
    if (!status.ok()) return Say(status);
    return data == std::vector<char>(bytes_.count(), static_cast<char>(value)) ? "same" : "different";
  }
  absl::Status Release() {
    kept_.Reset();
    LGPU_RETURN_IF_ERROR(backend_->Unmap(base_));
    return backend_->Release(memory_);
  }
  std::string TryToGrow() {
    std::string got;
    if (ftruncate(kept_.get(), static_cast<off_t>(bytes_.count())) == 0) got += " ftruncate";
    if (fallocate(kept_.get(), 0, 0, static_cast<off_t>(bytes_.count())) == 0) got += " fallocate";
    if (pwrite(kept_.get(), "x", 1, 0) == 1) got += " write";
    if (fcntl(kept_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0) got += " seal";
    const std::string path = "/proc/self/fd/" + std::to_string(kept_.get());
    if (const UniqueFd again(open(path.c_str(), O_RDWR | O_CLOEXEC)); again) {
      if (ftruncate(again.get(), static_cast<off_t>(bytes_.count())) == 0) got += " reopened";
    }
    return got.empty() ? "nothing" : "got" + got;
  }
  absl::Status RunOutOfDescriptors() {
    const rlimit none{3, 3};
    setrlimit(RLIMIT_NOFILE, &none);
    return backend_->Create(0, 2_MiB).status();
  }
  absl::Status RunOutOfMappings() {
    // The heap of a program that has been running for a while has room without growing.
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    { const std::vector<std::string> room(32, std::string(100'000, 'x')); }
    LGPU_ASSIGN_OR_RETURN(std::byte* const base, backend_->Reserve(0, 64_MiB));
    std::vector<MemoryHandle> memory;
    for (int i = 0; i < 16; ++i) {
      LGPU_ASSIGN_OR_RETURN(memory.emplace_back(), backend_->Create(0, 2_MiB));
    }
    constexpr std::size_t kPages = 1 << 18;
    auto* const pages = static_cast<char*>(
        mmap(nullptr, kPages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t i = 0; i < kPages && mprotect(pages + i * 4096, 4096, PROT_READ) == 0; i += 2) {
    }
    for (std::size_t i = 0; i < memory.size(); ++i) {
      LGPU_RETURN_IF_ERROR(backend_->Map(base + i * (4_MiB).count(), memory[i]));
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<DeviceBackend> backend_;
  const int socket_;
  UniqueFd kept_;
  Bytes bytes_;
  MemoryHandle memory_;
  StreamHandle stream_;
  std::byte* base_ = nullptr;
};

int RunPeer(const DeviceBackendFactory& factory, int socket) {
  // Sanitizers catch faults, and here the fault is the result.
  signal(SIGBUS, SIG_DFL);
  signal(SIGSEGV, SIG_DFL);
  Peer peer(factory, socket);
  for (std::string line; std::getline(std::cin, line);) std::cout << peer.Obey(line) << std::endl;
  return 0;
}

}  // namespace

DevicePeer::DevicePeer(const std::string& factory) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  fcntl(theirs.get(), F_SETFD, 0);
  auto program = testing::ChildProgram::Start(
      {.argv = {"/proc/self/exe", "--device-peer", factory, std::to_string(theirs.get())}});
  EXPECT_TRUE(program.ok()) << program.status();
  if (program.ok()) program_ = *std::move(program);
}

std::string DevicePeer::Ask(const std::string& line) {
  program_->WriteLine(line);
  return program_->ReadLine().value_or("(died)");
}

std::string DevicePeer::Import(const UniqueFd& fd, Bytes bytes) {
  SendDescriptor(socket_.get(), fd.get());
  return Ask("import " + std::to_string(bytes.count()));
}

int DevicePeer::WaitForEnd() {
  program_->CloseStdin();
  return program_->Wait().value_or(-1);
}

int RunDeviceBackendTests(int argc, char** argv, const std::vector<DeviceBackendFactory>& factories) {
  if (argc == 4 && std::strcmp(argv[1], "--device-peer") == 0) {
    for (const DeviceBackendFactory& factory : factories) {
      if (factory.name == argv[2]) return RunPeer(factory, std::atoi(argv[3]));
    }
    return 2;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace lgpu
