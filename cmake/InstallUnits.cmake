# Run by `cmake --install`: writes the systemd units with the place of lgpud.
set(LGPU_BINDIR ${CMAKE_INSTALL_PREFIX}/bin)
if(CMAKE_INSTALL_PREFIX MATCHES "/_CPack_Packages/")  # a package's files, which will lie elsewhere
  set(LGPU_BINDIR /usr/bin)
endif()
configure_file(${LGPU_SOURCE}/packaging/lgpud.service.in ${LGPU_BUILD}/package/system/lgpud.service @ONLY)
configure_file(${LGPU_SOURCE}/packaging/lgpud-user.service.in ${LGPU_BUILD}/package/user/lgpud.service @ONLY)
file(INSTALL ${LGPU_BUILD}/package/system/lgpud.service DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/systemd/system)
file(INSTALL ${LGPU_BUILD}/package/user/lgpud.service DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/systemd/user)
