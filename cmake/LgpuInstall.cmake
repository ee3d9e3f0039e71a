# What `cmake --install` puts where. Included at the end of the root CMakeLists.txt.

include(CMakePackageConfigHelpers)

# The headers of the layers that a program sees; nothing else is public.
foreach(layer base allocator allocator/device kernels client/runtime)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${layer}/include/lgpu)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${layer}/include/lgpu DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
            FILES_MATCHING PATTERN "*.h")
  endif()
endforeach()

if(TARGET lgpu)
  install(TARGETS lgpu EXPORT lgpuTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lgpu)
  install(EXPORT lgpuTargets NAMESPACE lgpu:: DESTINATION ${package_dir})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/lgpuConfig.cmake.in
                                ${PROJECT_BINARY_DIR}/package/lgpuConfig.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lgpuConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/package/lgpuConfig.cmake ${PROJECT_BINARY_DIR}/package/lgpuConfigVersion.cmake
          DESTINATION ${package_dir})
  # The file finds its prefix from its own place, so that an installed tree can be moved.
  file(RELATIVE_PATH LGPU_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/lgpu.pc.in ${PROJECT_BINARY_DIR}/package/lgpu.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/lgpu.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

if(TARGET lgpud)
  install(TARGETS lgpud RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpud.service ${PROJECT_SOURCE_DIR}/packaging/lgpud.socket
        DESTINATION lib/systemd/system)
# liblgpu and the command contain parts of gRPC (cmake/LgpuGrpc.cmake).
install(FILES ${PROJECT_SOURCE_DIR}/packaging/NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu)
install(FILES /usr/share/common-licenses/Apache-2.0 DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu)
install(FILES /usr/share/doc/libgrpc-dev/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu RENAME grpc.copyright)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpud.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/examples)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/prometheus/lgpu-alerts.yml ${PROJECT_SOURCE_DIR}/packaging/grafana/lgpu.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/examples)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpu.7 DESTINATION ${CMAKE_INSTALL_MANDIR}/man7)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpud.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpud.toml.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)

# `cpack -G TGZ`: programs, library and headers with every shared library that the machine may lack, to be unpacked
# anywhere. An RPATH, not a RUNPATH: it counts for the libraries of libraries too.
foreach(program lgpud lgpu_cli)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES
      INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN/../lib/lgpu")
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  endif()
endforeach()
if(TARGET lgpu)
  file(RELATIVE_PATH LGPU_BUNDLED /prefix/${CMAKE_INSTALL_LIBDIR} /prefix/lib/lgpu)
  set_target_properties(lgpu PROPERTIES INSTALL_RPATH "$ORIGIN/${LGPU_BUNDLED}")
  target_link_options(lgpu PRIVATE -Wl,--disable-new-dtags)
endif()
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME lgpu)
set(CPACK_PACKAGE_VENDOR lgpu)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/BundleLibraries.cmake)
set(CPACK_LGPU_SOURCE ${PROJECT_SOURCE_DIR})
set(CPACK_LGPU_LIBDIR ${CMAKE_INSTALL_LIBDIR})
include(CPack)
