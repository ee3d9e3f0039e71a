#include "client/driver/shim_file.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "client/driver/place_note.h"

namespace lgpu::shim {
namespace {

// The most bytes of a library's dynamic section and its names: far above any driver's.
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

std::optional<std::string> ReadAt(int fd, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes > kMostBytes) return std::nullopt;
  std::string data(bytes, '\0');
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t got =
        ::pread(fd, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    if (got <= 0) return std::nullopt;
    done += static_cast<std::size_t>(got);
  }
  return data;
}

template <typename Record>
std::optional<std::vector<Record>> ReadRecords(int fd, std::uint64_t offset, std::uint64_t count) {
  const std::optional<std::string> data = ReadAt(fd, offset, count * sizeof(Record));
  if (!data) return std::nullopt;
  std::vector<Record> records(count);
  std::memcpy(records.data(), data->data(), data->size());
  return records;
}

/// The parts of a library that the loader reads.
struct Library {
  std::vector<Elf64_Phdr> segments;
  std::vector<Elf64_Dyn> dynamic;
  std::uint64_t dynamic_at = 0;  // in the file
  std::uint64_t names = 0;       // the address of DT_STRTAB
  std::string name_bytes;

  std::optional<std::uint64_t> OffsetOf(std::uint64_t address) const {
    for (const Elf64_Phdr& segment : segments) {
      if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
          address - segment.p_vaddr < segment.p_filesz)
        return address - segment.p_vaddr + segment.p_offset;
    }
    return std::nullopt;
  }
  std::optional<std::uint64_t> AddressOf(std::uint64_t offset) const {
    for (const Elf64_Phdr& segment : segments) {
      if (segment.p_type == PT_LOAD && offset >= segment.p_offset &&
          offset - segment.p_offset < segment.p_filesz)
        return offset - segment.p_offset + segment.p_vaddr;
    }
    return std::nullopt;
  }
  std::uint64_t Value(std::int64_t tag) const {
    for (const Elf64_Dyn& entry : dynamic) {
      if (entry.d_tag == tag) return entry.d_un.d_val;
    }
    return 0;
  }
  bool Needs(std::string_view library) const {
    return std::any_of(dynamic.begin(), dynamic.end(), [&](const Elf64_Dyn& entry) {
      return entry.d_tag == DT_NEEDED && entry.d_un.d_val < name_bytes.size() &&
             library == name_bytes.c_str() + entry.d_un.d_val;
    });
  }
};

std::optional<Library> ReadLibrary(int fd) {
  const auto header = ReadRecords<Elf64_Ehdr>(fd, 0, 1);
  if (!header || std::memcmp(header->front().e_ident, ELFMAG, SELFMAG) != 0 ||
      header->front().e_ident[EI_CLASS] != ELFCLASS64 || header->front().e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  Library library;
  auto segments = ReadRecords<Elf64_Phdr>(fd, header->front().e_phoff, header->front().e_phnum);
  if (!segments) return std::nullopt;
  library.segments = *std::move(segments);
  const auto dynamic = std::find_if(library.segments.begin(), library.segments.end(),
                                    [](const Elf64_Phdr& segment) { return segment.p_type == PT_DYNAMIC; });
  if (dynamic == library.segments.end()) return std::nullopt;
  library.dynamic_at = dynamic->p_offset;
  auto entries = ReadRecords<Elf64_Dyn>(fd, dynamic->p_offset, dynamic->p_filesz / sizeof(Elf64_Dyn));
  if (!entries) return std::nullopt;
  library.dynamic = *std::move(entries);
  library.names = library.Value(DT_STRTAB);
  const std::optional<std::uint64_t> names_at = library.OffsetOf(library.names);
  std::optional<std::string> names = names_at ? ReadAt(fd, *names_at, library.Value(DT_STRSZ)) : std::nullopt;
  if (!names) return std::nullopt;
  library.name_bytes = *std::move(names);
  return library;
}

std::optional<std::string> ReadAll(int fd) {
  const off_t end = ::lseek(fd, 0, SEEK_END);
  return end < 0 ? std::nullopt : ReadAt(fd, 0, static_cast<std::uint64_t>(end));
}

}  // namespace

std::optional<ShimFile> ShimFile::Read(int fd, std::string_view real, std::string* damage) {
  damage->clear();
  const std::optional<Library> library = ReadLibrary(fd);
  if (!library || !library->Needs(real)) return std::nullopt;
  const auto damaged = [damage](const char* why) {
    *damage = why;
    return std::nullopt;
  };
  std::optional<std::string> bytes = ReadAll(fd);
  if (!bytes) return damaged("it cannot be read");
  ShimFile file;
  file.bytes_ = *std::move(bytes);
  file.note_ = file.bytes_.find(std::string_view(PlaceNote::kMarker, sizeof(PlaceNote::kMarker)));
  if (file.note_ == std::string::npos || file.bytes_.size() - file.note_ < sizeof(PlaceNote)) {
    return damaged("it has no room for the lease's variables");
  }
  const auto runpath = std::find_if(library->dynamic.begin(), library->dynamic.end(),
                                    [](const Elf64_Dyn& entry) { return entry.d_tag == DT_RUNPATH; });
  const std::optional<std::uint64_t> folder = library->AddressOf(file.note_ + offsetof(PlaceNote, folder));
  if (runpath == library->dynamic.end() || !folder) return damaged("it has no RUNPATH");
  file.runpath_ = library->dynamic_at +
                  static_cast<std::size_t>(runpath - library->dynamic.begin()) * sizeof(Elf64_Dyn) +
                  offsetof(Elf64_Dyn, d_un);
  // The loader adds it to the address of the names, which wraps.
  file.folder_as_runpath_ = *folder - library->names;
  return file;
}

std::string ShimFile::folder() const {
  const char* const folder = bytes_.data() + note_ + offsetof(PlaceNote, folder);
  return {folder, ::strnlen(folder, PlaceNote::kRoom)};
}

std::optional<std::string> ShimFile::CopyFor(const std::string& folder, const std::string& variables) const {
  if (folder.size() >= PlaceNote::kRoom || variables.size() >= PlaceNote::kRoom) return std::nullopt;
  std::string copy = bytes_;
  copy.replace(note_ + offsetof(PlaceNote, folder), folder.size() + 1, folder.c_str(), folder.size() + 1);
  copy.replace(note_ + offsetof(PlaceNote, variables), variables.size() + 1, variables.c_str(),
               variables.size() + 1);
  std::memcpy(copy.data() + runpath_, &folder_as_runpath_, sizeof(folder_as_runpath_));
  return copy;
}

bool IsLibraryOfThisMachine(int fd) {
#if defined(__aarch64__)
  constexpr Elf64_Half kMachine = EM_AARCH64;
#else
  constexpr Elf64_Half kMachine = EM_X86_64;
#endif
  const auto header = ReadRecords<Elf64_Ehdr>(fd, 0, 1);
  return header && std::memcmp(header->front().e_ident, ELFMAG, SELFMAG) == 0 &&
         header->front().e_ident[EI_CLASS] == ELFCLASS64 && header->front().e_type == ET_DYN &&
         header->front().e_machine == kMachine;
}

bool HasName(int fd, std::string_view name) {
  const std::optional<Library> library = ReadLibrary(fd);
  if (!library) return false;
  const std::string word = std::string(1, '\0') + std::string(name) + '\0';
  return library->name_bytes.find(word) != std::string::npos;
}

}  // namespace lgpu::shim
