# Run by cpack on the staged tree: copies the shared libraries that its programs need into lib/lgpu.
file(GLOB programs ${CPACK_TEMPORARY_DIRECTORY}/bin/* ${CPACK_TEMPORARY_DIRECTORY}/${CPACK_LGPU_LIBDIR}/liblgpu.so.0)
execute_process(
  COMMAND ${CPACK_LGPU_SOURCE}/scripts/bundle-libraries ${CPACK_TEMPORARY_DIRECTORY}/lib/lgpu ${programs}
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${CPACK_TEMPORARY_DIRECTORY}/lib/lgpu/liblgpu.so.0)
