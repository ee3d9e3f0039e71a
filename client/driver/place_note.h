#ifndef LGPU_CLIENT_DRIVER_PLACE_NOTE_H_
#define LGPU_CLIENT_DRIVER_PLACE_NOTE_H_

namespace lgpu::shim {

/// A PlaceNote is room in each of lgpu's libraries. `lgpu run --isolate` gives a command its own copies of
/// the libraries and writes the folder and the lease's variables there, which the program's environment may
/// lack. The note of an installed library is empty.
struct PlaceNote {
  static constexpr unsigned kRoom = 4096;
  static constexpr char kMarker[16] = "lgpu-place-note";

  char marker[16];
  char folder[kRoom];     // of the copies and the real library, absolute; the copy's RUNPATH points here
  char variables[kRoom];  // of the lease: NAME=VALUE, each with the end of a line
};

}  // namespace lgpu::shim

#endif  // LGPU_CLIENT_DRIVER_PLACE_NOTE_H_
