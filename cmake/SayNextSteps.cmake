# Run at the end of `cmake --install`: what is left to do by hand.
if(CMAKE_INSTALL_PREFIX MATCHES "/_CPack_Packages/")
  return()
endif()
message("
lgpu is in ${CMAKE_INSTALL_PREFIX}. Next, as root:
  ldconfig                                           programs find liblgpu.so.0
  groupadd --force --system lgpu                     the group of those who may use the GPUs
  usermod -aG lgpu USER                              for each of them; they log in again
  systemctl enable --now ${CMAKE_INSTALL_PREFIX}/lib/systemd/system/lgpud.service
Without systemd: ${CMAKE_INSTALL_PREFIX}/bin/lgpud &
Removing it: cmake --build BUILD --target uninstall")
