#include "proto/session_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "lgpu/status.h"

namespace lgpu {
namespace {

namespace bip = boost::interprocess;

// A memory_mappable of Boost.Interprocess over a memfd.
class MemfdMapping {
 public:
  MemfdMapping(int fd, bip::mode_t mode) : fd_(fd), mode_(mode) {}
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd_);
  }
  bip::mode_t get_mode() const { return mode_; }

 private:
  int fd_;
  bip::mode_t mode_;
};

absl::Status OsError(std::string_view call, int error) {
  const std::string text = absl::StrCat(std::string(call), ": ", std::strerror(error));
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC) {
    return absl::ResourceExhaustedError(absl::StrCat(text, "; a session needs two shared pages of its own"));
  }
  return absl::InternalError(text);
}

absl::StatusOr<UniqueFd> MakeMemfd(const char* name, std::size_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    return OsError("memfd_create", errno);
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return OsError("ftruncate of a session page", errno);
  }
  return fd;
}

absl::Status Seal(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0) {
    return OsError("fcntl(F_ADD_SEALS) on a session page", errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<bip::mapped_region>> Map(int fd, bip::mode_t mode, std::size_t bytes) {
  std::shared_ptr<bip::mapped_region> region;
  try {
    region = std::make_shared<bip::mapped_region>(MemfdMapping(fd, mode), mode, 0, bytes);
  } catch (const bip::interprocess_exception& error) {
    return OsError("mmap of a session page", error.get_native_error());
  }
  if (::madvise(region->get_address(), bytes, MADV_DONTFORK) != 0) {
    return OsError("madvise(MADV_DONTFORK) on a session page", errno);
  }
  return region;
}

// Whether `fd` may be mapped as a page of `bytes`: a file that could shrink later would turn a read into
// a SIGBUS.
absl::Status CheckReceivedFile(int fd, std::size_t bytes) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a session page is no open descriptor: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode) || info.st_size != static_cast<off_t>(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a session page of ", info.st_size,
                                                   " bytes was received, this version knows pages of ", bytes,
                                                   "; use a liblgpu and an lgpud of the same version"));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("a session page was received that is not sealed against shrinking");
  }
  return absl::OkStatus();
}

absl::Status CheckMagic(std::uint64_t magic, std::uint64_t expected) {
  if (magic == expected) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a session page starts with ", absl::Hex(magic),
                                                 " and not with ", absl::Hex(expected),
                                                 "; use a liblgpu and an lgpud of the same version"));
}

}  // namespace

void SetOpName(ClientPage& page, int index, std::string_view name) {
  LGPU_CHECK_OP(index, >=, 0);
  LGPU_CHECK_OP(index, <, ClientPage::kMaxOps);
  std::array<std::uint64_t, ClientPage::kOpNameBytes / 8> words = {};
  std::memcpy(words.data(), name.data(), std::min<std::size_t>(name.size(), ClientPage::kOpNameBytes));
  auto& target = page.op_names[static_cast<std::size_t>(index)].words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    target[i].store(words[i], std::memory_order_relaxed);
  }
  const std::uint64_t count = page.op_count.load(std::memory_order_relaxed);
  page.op_count.store(std::max(count, static_cast<std::uint64_t>(index) + 1), std::memory_order_release);
}

std::string GetOpName(const ClientPage& page, int index) {
  const std::uint64_t count = page.op_count.load(std::memory_order_acquire);
  if (index < 0 || index >= ClientPage::kMaxOps || static_cast<std::uint64_t>(index) >= count) {
    return "?";
  }
  // The words are copied once; only the copy is looked at.
  std::array<std::uint64_t, ClientPage::kOpNameBytes / 8> words;
  const auto& source = page.op_names[static_cast<std::size_t>(index)].words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = source[i].load(std::memory_order_relaxed);
  }
  std::array<char, ClientPage::kOpNameBytes> text;
  std::memcpy(text.data(), words.data(), text.size());
  const auto end = std::find(text.begin(), text.end(), '\0');
  const bool sensible =
      end != text.begin() &&
      std::all_of(text.begin(), end,
                  [](char c) { return c == '_' || absl::ascii_isalnum(static_cast<unsigned char>(c)); }) &&
      std::all_of(end, text.end(), [](char c) { return c == '\0'; });
  return sensible ? std::string(text.begin(), end) : "?";
}

absl::StatusOr<SharedPage<StatsPage>> SharedPages::CreateStatsPage() {
  SharedPage<StatsPage> page;
  LGPU_ASSIGN_OR_RETURN(page.fd_, MakeMemfd("lgpu-stats", sizeof(StatsPage)));
  LGPU_ASSIGN_OR_RETURN(auto region, Map(page.fd_.get(), bip::read_write, sizeof(StatsPage)));
  // After the mapping: FUTURE_WRITE leaves writable mappings that exist and refuses new ones.
  LGPU_RETURN_IF_ERROR(Seal(page.fd_.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
  page.page_ = static_cast<StatsPage*>(region->get_address());
  page.page_->magic.store(StatsPage::kMagic, std::memory_order_release);
  page.region_ = std::move(region);
  return page;
}

absl::StatusOr<SharedPage<const ClientPage>> SharedPages::CreateClientPage() {
  SharedPage<const ClientPage> page;
  LGPU_ASSIGN_OR_RETURN(page.fd_, MakeMemfd("lgpu-client", sizeof(ClientPage)));
  const std::uint64_t magic = ClientPage::kMagic;
  if (::pwrite(page.fd_.get(), &magic, sizeof(magic), 0) != static_cast<ssize_t>(sizeof(magic))) {
    return OsError("pwrite to a session page", errno);
  }
  LGPU_RETURN_IF_ERROR(Seal(page.fd_.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  LGPU_ASSIGN_OR_RETURN(auto region, Map(page.fd_.get(), bip::read_only, sizeof(ClientPage)));
  page.page_ = static_cast<const ClientPage*>(region->get_address());
  page.region_ = std::move(region);
  return page;
}

absl::StatusOr<SharedPage<const StatsPage>> SharedPages::OpenStatsPage(UniqueFd fd) {
  LGPU_RETURN_IF_ERROR(CheckReceivedFile(fd.get(), sizeof(StatsPage)));
  LGPU_ASSIGN_OR_RETURN(auto region, Map(fd.get(), bip::read_only, sizeof(StatsPage)));
  SharedPage<const StatsPage> page;
  page.page_ = static_cast<const StatsPage*>(region->get_address());
  page.region_ = std::move(region);
  page.fd_ = std::move(fd);
  LGPU_RETURN_IF_ERROR(CheckMagic(page->magic.load(std::memory_order_acquire), StatsPage::kMagic));
  return page;
}

absl::StatusOr<SharedPage<ClientPage>> SharedPages::OpenClientPage(UniqueFd fd) {
  LGPU_RETURN_IF_ERROR(CheckReceivedFile(fd.get(), sizeof(ClientPage)));
  LGPU_ASSIGN_OR_RETURN(auto region, Map(fd.get(), bip::read_write, sizeof(ClientPage)));
  SharedPage<ClientPage> page;
  page.page_ = static_cast<ClientPage*>(region->get_address());
  page.region_ = std::move(region);
  page.fd_ = std::move(fd);
  LGPU_RETURN_IF_ERROR(CheckMagic(page->magic.load(std::memory_order_acquire), ClientPage::kMagic));
  return page;
}

namespace {

// Atomically: a thread that looks sees the one mapping or the other. Not through mmap(), which
// ThreadSanitizer takes for a write to what the range held.
absl::Status MapOver(const void* address, int fd, std::size_t bytes, int protection) {
  void* const target = const_cast<void*>(address);
  if (::syscall(SYS_mmap, target, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == -1) {
    return OsError("mmap of a session page", errno);
  }
  if (::madvise(target, bytes, MADV_DONTFORK) != 0) {
    return OsError("madvise(MADV_DONTFORK) on a session page", errno);
  }
  return absl::OkStatus();
}

// The pages of a mapping under another address.
absl::StatusOr<std::shared_ptr<const ClientPage>> SecondView(ClientPage& page) {
  void* const view = ::mremap(&page, 0, sizeof(page), MREMAP_MAYMOVE);
  if (view == MAP_FAILED) return OsError("mremap of a session page", errno);
  return std::shared_ptr<const ClientPage>(static_cast<const ClientPage*>(view), [](const ClientPage* pages) {
    ::munmap(const_cast<ClientPage*>(pages), sizeof(*pages));
  });
}

// The words before the ring.
constexpr std::size_t kHeadWords = offsetof(ClientPage, ring) / sizeof(std::uint64_t);

// What was written to the old page between its being copied and its being replaced. Most counters are added
// to and taken from, the peak and the count of ops are written and only grow, names of ops are written once.
void AddWhatIsMissing(const ClientPage& old, const ClientPage& copied, ClientPage& fresh) {
  const auto raise = [](std::atomic<std::uint64_t>& value, std::uint64_t to) {
    std::uint64_t seen = value.load(std::memory_order_relaxed);
    while (seen < to && !value.compare_exchange_weak(seen, to, std::memory_order_release)) {
    }
  };
  for (std::size_t i = 0; i < old.devices.size(); ++i) {
    using Device = ClientPage::Device;
    for (const auto counter :
         {&Device::used, &Device::requested, &Device::live_blocks, &Device::allocations, &Device::refusals}) {
      const std::uint64_t missing = (old.devices[i].*counter).load(std::memory_order_relaxed) -
                                    (copied.devices[i].*counter).load(std::memory_order_relaxed);
      (fresh.devices[i].*counter).fetch_add(missing, std::memory_order_relaxed);
    }
    for (const auto count : {&Device::peak_used, &Device::ops}) {
      raise(fresh.devices[i].*count, (old.devices[i].*count).load(std::memory_order_relaxed));
    }
  }
  for (std::size_t i = 0; i < old.op_names.size(); ++i) {
    for (std::size_t j = 0; j < old.op_names[i].words.size(); ++j) {
      const std::uint64_t word = old.op_names[i].words[j].load(std::memory_order_relaxed);
      if (word != 0) fresh.op_names[i].words[j].store(word, std::memory_order_relaxed);
    }
  }
  raise(fresh.op_count, old.op_count.load(std::memory_order_acquire));
}

}  // namespace

absl::Status SharedPages::ReplaceStatsPage(SharedPage<const StatsPage>& page, UniqueFd fd) {
  LGPU_ASSIGN_OR_RETURN(const SharedPage<const StatsPage> checked, OpenStatsPage(std::move(fd)));
  return MapOver(page.get(), checked.fd(), sizeof(StatsPage), PROT_READ);
}

absl::Status SharedPages::ReplaceClientPage(SharedPage<ClientPage>& page, UniqueFd fd) {
  LGPU_ASSIGN_OR_RETURN(const SharedPage<ClientPage> fresh, OpenClientPage(std::move(fd)));
  using Word = std::atomic<std::uint64_t>;
  static_assert(sizeof(ClientPage) % sizeof(Word) == 0);
  LGPU_ASSIGN_OR_RETURN(const std::shared_ptr<const ClientPage> old, SecondView(*page));
  const auto copied = std::make_unique<ClientPage>();
  const Word* const from = reinterpret_cast<const Word*>(page.get());
  Word* const to = reinterpret_cast<Word*>(fresh.get());
  Word* const seen = reinterpret_cast<Word*>(copied.get());
  for (std::size_t i = 0; i < sizeof(ClientPage) / sizeof(Word); ++i) {
    const std::uint64_t word = from[i].load(std::memory_order_relaxed);
    to[i].store(word, std::memory_order_relaxed);
    if (i < kHeadWords) seen[i].store(word, std::memory_order_relaxed);
  }
  LGPU_RETURN_IF_ERROR(MapOver(page.get(), fresh.fd(), sizeof(ClientPage), PROT_READ | PROT_WRITE));
  AddWhatIsMissing(*old, *copied, *fresh);
  return absl::OkStatus();
}

}  // namespace lgpu
