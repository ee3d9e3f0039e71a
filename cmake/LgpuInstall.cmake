# What `cmake --install` puts where, by the packages that have it. Included at the end of the root CMakeLists.txt.

include(CMakePackageConfigHelpers)

# The headers of the layers that a program sees; nothing else is public.
foreach(layer base allocator allocator/device kernels client/runtime client/distribute)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${layer}/include/lgpu)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${layer}/include/lgpu DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
            COMPONENT liblgpu-dev FILES_MATCHING PATTERN "*.h")
    file(GLOB_RECURSE headers ${PROJECT_SOURCE_DIR}/${layer}/include/lgpu/*.h)
    list(APPEND public_headers ${headers})
  endif()
endforeach()

if(TARGET lgpu)
  install(TARGETS lgpu EXPORT lgpuTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT liblgpu0 NAMELINK_COMPONENT liblgpu-dev
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lgpu)
  install(EXPORT lgpuTargets NAMESPACE lgpu:: DESTINATION ${package_dir} COMPONENT liblgpu-dev)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/lgpuConfig.cmake.in
                                ${PROJECT_BINARY_DIR}/package/lgpuConfig.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lgpuConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/package/lgpuConfig.cmake ${PROJECT_BINARY_DIR}/package/lgpuConfigVersion.cmake
          DESTINATION ${package_dir} COMPONENT liblgpu-dev)
  # The file finds its prefix from its own place, so that an installed tree can be moved.
  file(RELATIVE_PATH LGPU_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/lgpu.pc.in ${PROJECT_BINARY_DIR}/package/lgpu.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/lgpu.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT liblgpu-dev)
endif()

if(TARGET lgpud)
  install(TARGETS lgpud RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT lgpud)
endif()
# The units name lgpud where this installation puts it.
install(CODE "set(LGPU_SOURCE ${PROJECT_SOURCE_DIR})\nset(LGPU_BUILD ${PROJECT_BINARY_DIR})" COMPONENT lgpud)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallUnits.cmake COMPONENT lgpud)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpud.socket DESTINATION lib/systemd/system COMPONENT lgpud)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpu.sysusers DESTINATION lib/sysusers.d RENAME lgpu.conf COMPONENT lgpud)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpu.tmpfiles DESTINATION lib/tmpfiles.d RENAME lgpu.conf COMPONENT lgpud)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/lgpud.toml ${PROJECT_SOURCE_DIR}/packaging/prometheus/lgpu-alerts.yml
              ${PROJECT_SOURCE_DIR}/packaging/grafana/lgpu.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/examples COMPONENT lgpud)
# The schemas of the JSON that the command and the HTTP API write.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/packaging/schemas DESTINATION ${CMAKE_INSTALL_DATADIR}/lgpu COMPONENT lgpu
        FILES_MATCHING PATTERN "lgpu.*.json")
# The administrator copies them to Slurm's configuration (docs/slurm.md).
set(slurm ${PROJECT_SOURCE_DIR}/packaging/slurm)
install(PROGRAMS ${slurm}/lgpu-prolog ${slurm}/lgpu-taskprolog ${slurm}/lgpu-epilog ${slurm}/lgpu-sweep
        DESTINATION ${CMAKE_INSTALL_DATADIR}/lgpu/slurm COMPONENT lgpud)
install(FILES ${slurm}/lgpu-common.sh ${slurm}/job_submit.lua ${slurm}/cli_filter.lua ${slurm}/spank_lgpu.c
              ${slurm}/slurm.conf.sample ${slurm}/gres.conf.sample ${slurm}/plugstack.conf.sample
        DESTINATION ${CMAKE_INSTALL_DATADIR}/lgpu/slurm COMPONENT lgpud)
# The driver for Kubernetes, of which the administrator makes an image (docs/kubernetes.md).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/packaging/kubernetes DESTINATION ${CMAKE_INSTALL_DATADIR}/lgpu COMPONENT lgpud
        PATTERN "__pycache__" EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpu.7 DESTINATION ${CMAKE_INSTALL_MANDIR}/man7 COMPONENT lgpu)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpud.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT lgpud)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpu-hook.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT lgpu-driver-shim)
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lgpud.toml.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5 COMPONENT lgpud)
# liblgpu and the command contain parts of gRPC (cmake/LgpuGrpc.cmake).
install(FILES ${PROJECT_SOURCE_DIR}/packaging/NOTICE /usr/share/common-licenses/Apache-2.0
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu COMPONENT liblgpu0)
install(FILES /usr/share/doc/libgrpc-dev/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu
        RENAME grpc.copyright COMPONENT liblgpu0)
file(GLOB pages ${PROJECT_SOURCE_DIR}/docs/*.md)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu COMPONENT lgpu-doc)
install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/docs COMPONENT lgpu-doc)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/pictures DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/docs COMPONENT lgpu-doc)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/examples
        COMPONENT lgpu-doc FILES_MATCHING PATTERN "0*.cc" PATTERN "0*.c" PATTERN "10_*.c" PATTERN "*.csv" PATTERN "digits.py"
        PATTERN "notebook.ipynb")
# The API reference, from the public headers. Packages have it; `cmake --install` has it where it was built.
find_program(LGPU_DOXYGEN doxygen)
if(LGPU_DOXYGEN)
  set(api_dir ${PROJECT_BINARY_DIR}/api)
  add_custom_command(OUTPUT ${api_dir}/index.html
    COMMAND ${CMAKE_COMMAND} -E env LGPU_VERSION=${PROJECT_VERSION} LGPU_API_DIR=${api_dir} ${LGPU_DOXYGEN} docs/Doxyfile
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    DEPENDS ${public_headers} ${PROJECT_SOURCE_DIR}/docs/Doxyfile ${PROJECT_SOURCE_DIR}/docs/api.md
    COMMENT "Making the API reference" VERBATIM)
  add_custom_target(lgpu_api DEPENDS ${api_dir}/index.html)
  install(DIRECTORY ${api_dir}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lgpu/api COMPONENT lgpu-doc OPTIONAL
          PATTERN "*.md5" EXCLUDE PATTERN "*.map" EXCLUDE)
endif()
# Once, behind all of them.
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/SayNextSteps.cmake COMPONENT next-steps)

# Everything that `cmake --install` wants to be there.
add_custom_target(installed DEPENDS lgpu lgpud lgpu_cli lgpu_selftest lgpu_man lgpu_shim_cuda lgpu_shim_nvml lgpu_redirect lgpu_hook)
# Removes the files of the last `cmake --install`.
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -P ${PROJECT_SOURCE_DIR}/cmake/Uninstall.cmake VERBATIM)

include(LgpuPackages)
