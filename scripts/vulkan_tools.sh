#!/usr/bin/env bash
# Puts what compiles and tests the Vulkan kernels into one folder, and touches nothing outside it: glslc, spirv-val, the
# validation layer and Mesa's lavapipe, a Vulkan device made of the processor. For Debian 12, from newer Debian's packages.
# usage: scripts/vulkan_tools.sh FOLDER; then FOLDER/glslc ..., FOLDER/spirv-val ..., FOLDER/on-lavapipe PROGRAM ...
# VALIDATE=1 FOLDER/on-lavapipe PROGRAM ... prints what the validation layer finds.
set -euo pipefail
folder=$(realpath -m "${1:?usage: scripts/vulkan_tools.sh FOLDER}")
[ -x "$folder/on-lavapipe" ] && exit 0
command -v apt-get dpkg >/dev/null || { echo "The Vulkan tools come as Debian packages, and there is no apt-get here."; exit 1; }
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 | tr -d ' ' || true)
[ -n "$mirror" ] || { echo "The sources of apt name no Debian mirror."; exit 1; }

half=$folder.half # becomes the folder when all is there
rm -rf "$half"
mkdir -p "$half"/apt/{lists/partial,cache/archives/partial} "$half"/{debs,root,layers}
printf 'deb [signed-by=%s] %s trixie main\ndeb [signed-by=%s] %s trixie-backports main\n' \
    "$keyring" "$mirror" "$keyring" "$mirror" > "$half/apt/list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$half/apt/list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$half/apt/lists"
    -o "Dir::Cache=$half/apt/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update
packages=(glslc libshaderc1 glslang-tools spirv-tools vulkan-validationlayers libvulkan1 libc6 libstdc++6 libgcc-s1
    libllvm19 libdisplay-info2 libdrm-amdgpu1 libdrm2 libelf1t64 libexpat1 libpng16-16t64 libwayland-client0 libx11-xcb1
    libxcb-dri3-0 libxcb-present0 libxcb-randr0 libxcb-shm0 libxcb-sync1 libxcb-xfixes0 libxcb1 libxshmfence1 libzstd1
    zlib1g libffi8 libedit2 libxml2 libtinfo6 libbsd0 libmd0 libxau6 libxdmcp6 libz3-4 liblzma5 libicu76)
(cd "$half/debs" && "${apt[@]}" download mesa-vulkan-drivers/trixie-backports "${packages[@]/%//trixie}")
for package in "$half"/debs/*.deb; do dpkg -x "$package" "$half/root"; done
rm -rf "$half"/{debs,apt}

# Programs of a newer Debian bring their own C library and start by its loader.
libraries=$(cd "$half" && dirname "$(find root/usr/lib -name libvulkan_lvp.so | head -1)")
loader=$(cd "$half" && find "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*' | head -1)
for tool in glslc spirv-val; do
    printf '#!/bin/sh\nhere=%s\nexec "$here/%s" --library-path "$here/%s" "$here/root/usr/bin/%s" "$@"\n' \
        "$folder" "$loader" "$libraries" "$tool" > "$half/$tool"
done
printf '{"file_format_version":"1.0.0","ICD":{"library_path":"%s/%s/libvulkan_lvp.so","api_version":"1.4.305"}}\n' \
    "$folder" "$libraries" > "$half/lavapipe.json"
layer=root/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json
sed "s#\"library_path\": \".*\"#\"library_path\": \"$folder/$libraries/libVkLayer_khronos_validation.so\"#" \
    "$half/$layer" > "$half/layers/validation.json"
for line in 'validate_sync = true' 'syncval_shader_accesses_heuristic = true' 'debug_action = VK_DBG_LAYER_ACTION_LOG_MSG' \
    'report_flags = error,warn' 'log_filename = stdout'; do echo "khronos_validation.$line"; done > "$half/layers/vk_layer_settings.txt"
cat > "$half/on-lavapipe" <<END
#!/bin/sh
here=$folder
export VK_DRIVER_FILES="\$here/lavapipe.json" VK_LAYER_PATH="\$here/layers"
export VK_LAYER_SETTINGS_PATH="\$here/layers/vk_layer_settings.txt"
[ -z "\${VALIDATE:-}" ] || export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
exec "\$here/$loader" --library-path "\$here/$libraries" "\$@"
END
chmod +x "$half"/{glslc,spirv-val,on-lavapipe}
rm -rf "$folder"
mv "$half" "$folder"
