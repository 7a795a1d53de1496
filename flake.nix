# nix build, nix run: written for the first release; not built with Nix yet.
{
  description = "kjit runs GGUF language models on AMD and NVIDIA GPUs";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in {
      packages = each (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "kjit";
          version = "0.1.0";
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [ "--bin" "kjit" ];
          # The tests fetch models and compilers: scripts/test runs them.
          doCheck = false;
          nativeBuildInputs = [ pkgs.installShellFiles pkgs.makeWrapper ];
          # Drivers lie where NixOS links them.
          postInstall = ''
            installShellCompletion --cmd kjit --bash <($out/bin/kjit completions bash) \
              --zsh <($out/bin/kjit completions zsh) --fish <($out/bin/kjit completions fish)
            wrapProgram $out/bin/kjit --suffix LD_LIBRARY_PATH : /run/opengl-driver/lib
          '';
          meta = {
            description = "Runs GGUF language models on AMD and NVIDIA GPUs, or on the CPU";
            license = with pkgs.lib.licenses; [ mit asl20 ];
            mainProgram = "kjit";
          };
        };
      });
    };
}
