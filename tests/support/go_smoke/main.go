// A smoke test of the published Go client: one sandbox's life, told as one line of JSON.
// Arguments: domain, API key, image.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	opensandbox "github.com/alibaba/OpenSandbox/sdks/sandbox/go"
)

const (
	patience = 30 * time.Second
	look     = 50 * time.Millisecond
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: smoke DOMAIN KEY IMAGE")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	config := opensandbox.ConnectionConfig{Domain: os.Args[1], APIKey: os.Args[2]}
	said, err := live(ctx, config, os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

// live makes a sandbox, uses it and kills it; gives what was seen on the way, by name.
func live(ctx context.Context, config opensandbox.ConnectionConfig, image string) (map[string]any, error) {
	said := map[string]any{}
	mark := fmt.Sprintf("go-%d", time.Now().UnixNano())
	sandbox, err := opensandbox.CreateSandbox(ctx, config, opensandbox.SandboxCreateOptions{
		Image:    image,
		Env:      map[string]string{"GREETING": "hello"},
		Metadata: map[string]string{"mark": mark},
	})
	if err != nil {
		return nil, err
	}
	// Once more in the end does no harm, and after a failure nothing is left.
	defer func() { _ = sandbox.Kill(context.Background()) }()
	manager := opensandbox.NewSandboxManager(config)
	steps := []func() error{
		func() error { return commands(ctx, sandbox, said) },
		func() error { return background(ctx, config, sandbox, said) },
		func() error { return session(ctx, sandbox, said) },
		func() error { return files(ctx, sandbox, said) },
		func() error { return records(ctx, manager, sandbox, mark, said) },
		func() error { return proxied(ctx, config, sandbox, said) },
		func() error { return pauseAndResume(ctx, sandbox, said) },
		func() error { return kill(ctx, manager, sandbox, said) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return said, fmt.Errorf("after %v: %w", said, err)
		}
	}
	return said, nil
}

func commands(ctx context.Context, sandbox *opensandbox.Sandbox, said map[string]any) error {
	ran, err := sandbox.RunCommand(ctx, "echo $GREETING", nil)
	if err != nil {
		return err
	}
	said["command"], said["exit code"] = ran.Stdout[0].Text, *ran.ExitCode
	failed, err := sandbox.RunCommand(ctx, "echo wrong >&2; exit 3", nil)
	if err != nil {
		return err
	}
	said["stderr"], said["failed with"] = failed.Stderr[0].Text, *failed.ExitCode
	return nil
}

// background runs one that goes on by itself; its status and output are had of execd's own client.
func background(
	ctx context.Context, config opensandbox.ConnectionConfig, sandbox *opensandbox.Sandbox, said map[string]any,
) error {
	started, err := sandbox.RunCommandWithOpts(
		ctx, opensandbox.RunCommandRequest{Command: "echo begun; sleep 0.2; echo done; exit 4", Background: true}, nil,
	)
	if err != nil {
		return err
	}
	endpoint, err := sandbox.GetEndpoint(ctx, opensandbox.DefaultExecdPort)
	if err != nil {
		return err
	}
	execd := opensandbox.NewExecdClient("http://"+endpoint.Endpoint, "", opensandbox.WithHeaders(endpoint.Headers))
	err = until(ctx, "the background command ended", func() (bool, error) {
		status, err := execd.GetCommandStatus(ctx, started.ID)
		if err != nil || status.Running {
			return false, err
		}
		said["background exit code"] = *status.ExitCode
		return true, nil
	})
	if err != nil {
		return err
	}
	logs, err := execd.GetCommandLogs(ctx, started.ID, nil)
	if err != nil {
		return err
	}
	said["background"] = logs.Output
	rest, err := execd.GetCommandLogs(ctx, started.ID, &logs.Cursor)
	if err != nil {
		return err
	}
	said["background after its end"] = rest.Output
	return nil
}

func session(ctx context.Context, sandbox *opensandbox.Sandbox, said map[string]any) error {
	made, err := sandbox.CreateSession(ctx)
	if err != nil {
		return err
	}
	for _, command := range []string{"cd /tmp && kept=yes", "echo $kept $PWD"} {
		ran, err := sandbox.RunInSession(ctx, made.ID, opensandbox.RunInSessionRequest{Command: command}, nil)
		if err != nil {
			return err
		}
		said["session"] = ran.Text()
	}
	return sandbox.DeleteSession(ctx, made.ID)
}

func files(ctx context.Context, sandbox *opensandbox.Sandbox, said map[string]any) error {
	const path = "/tmp/a.txt"
	options := opensandbox.UploadFileOptions{Metadata: opensandbox.FileMetadata{Path: path, Mode: 644}}
	if err := sandbox.UploadFile(ctx, strings.NewReader("written"), options); err != nil {
		return err
	}
	read, err := content(ctx, sandbox, path, "")
	if err != nil {
		return err
	}
	part, err := content(ctx, sandbox, path, "bytes=0-3")
	if err != nil {
		return err
	}
	info, err := sandbox.GetFileInfo(ctx, path)
	if err != nil {
		return err
	}
	found, err := sandbox.SearchFiles(ctx, "/tmp", "a.t*")
	if err != nil {
		return err
	}
	said["read"], said["part"], said["mode"], said["found"] = read, part, info[path].Mode, len(found)
	return nil
}

func content(ctx context.Context, sandbox *opensandbox.Sandbox, path, part string) (string, error) {
	body, err := sandbox.DownloadFile(ctx, path, part)
	if err != nil {
		return "", err
	}
	defer body.Close()
	read, err := io.ReadAll(body)
	return string(read), err
}

// records asks of the sandbox what the server keeps of it.
func records(
	ctx context.Context, manager *opensandbox.SandboxManager, sandbox *opensandbox.Sandbox, mark string,
	said map[string]any,
) error {
	listed, err := manager.ListSandboxInfos(ctx, opensandbox.ListOptions{
		States: []opensandbox.SandboxState{opensandbox.StateRunning}, Metadata: map[string]string{"mark": mark},
	})
	if err != nil {
		return err
	}
	said["listed"] = len(listed.Items) == 1 && listed.Items[0].ID == sandbox.ID()
	renewed, err := sandbox.Renew(ctx, 2*time.Hour)
	if err != nil {
		return err
	}
	said["renewed hours"] = time.Until(renewed.ExpiresAt).Round(time.Hour).Hours()
	word := "word"
	patched, err := sandbox.PatchMetadata(ctx, opensandbox.MetadataPatch{"more": &word, "mark": nil})
	if err != nil {
		return err
	}
	said["metadata"] = patched.Metadata
	return nil
}

// proxied reaches the sandbox through the server.
func proxied(
	ctx context.Context, config opensandbox.ConnectionConfig, sandbox *opensandbox.Sandbox, said map[string]any,
) error {
	config.UseServerProxy = true
	again, err := opensandbox.ConnectSandbox(ctx, config, sandbox.ID(), opensandbox.ReadyOptions{})
	if err != nil {
		return err
	}
	ran, err := again.RunCommand(ctx, "cat /tmp/a.txt", nil)
	if err != nil {
		return err
	}
	said["through the server"] = ran.Text()
	return nil
}

func pauseAndResume(ctx context.Context, sandbox *opensandbox.Sandbox, said map[string]any) error {
	if err := sandbox.Pause(ctx); err != nil {
		return err
	}
	err := until(ctx, "the sandbox was paused", func() (bool, error) {
		info, err := sandbox.GetInfo(ctx)
		return err == nil && info.Status.State == opensandbox.StatePaused, err
	})
	if err != nil {
		return err
	}
	resumed, err := sandbox.Resume(ctx, opensandbox.ReadyOptions{})
	if err != nil {
		return err
	}
	ran, err := resumed.RunCommand(ctx, "echo awake", nil)
	if err != nil {
		return err
	}
	said["resumed"] = ran.Text()
	return nil
}

func kill(
	ctx context.Context, manager *opensandbox.SandboxManager, sandbox *opensandbox.Sandbox, said map[string]any,
) error {
	if err := sandbox.Kill(ctx); err != nil {
		return err
	}
	return until(ctx, "the sandbox was gone", func() (bool, error) {
		_, err := manager.GetSandboxInfo(ctx, sandbox.ID())
		var refused *opensandbox.APIError
		if !errors.As(err, &refused) {
			return false, err
		}
		said["gone"] = fmt.Sprint(refused.StatusCode, " ", refused.Response.Code)
		return true, nil
	})
}

func until(ctx context.Context, what string, holds func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		done, err := holds()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
	}
	return fmt.Errorf("not within %v: %s", patience, what)
}
