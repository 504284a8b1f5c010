// The least that can stand in for the execd of the published opensandbox-server: it answers GET /ping, and runs
// POST /command by `sh -c` and tells of it in the protocol's events. It is for benchmarks/published_server.py alone,
// which needs no registry this way. A small execd that can do nothing else is the best case for the server around it.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

const (
	// addressVariable names where to listen; by default everywhere, since the engine forwards a port of the machine.
	addressVariable = "REFERENCE_EXECD_ADDRESS"
	defaultAddress  = ":44772"
	// relayed is where clients of a bridged sandbox are sent, which the real one would relay to itself.
	relayed = "/proxy/44772"
)

type request struct {
	Command string `json:"command"`
}

type failure struct {
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
}

type event struct {
	Type          string   `json:"type"`
	Text          string   `json:"text,omitempty"`
	ExecutionTime *int64   `json:"execution_time,omitempty"`
	Error         *failure `json:"error,omitempty"`
	Timestamp     int64    `json:"timestamp"`
}

func main() {
	routes := http.NewServeMux()
	for _, prefix := range []string{"", relayed} {
		routes.HandleFunc("GET "+prefix+"/ping", func(http.ResponseWriter, *http.Request) {})
		routes.HandleFunc("POST "+prefix+"/command", runCommand)
	}
	address := os.Getenv(addressVariable)
	if address == "" {
		address = defaultAddress
	}
	log.Fatal(http.ListenAndServe(address, routes))
}

func runCommand(answer http.ResponseWriter, asked *http.Request) {
	var body request
	if err := json.NewDecoder(asked.Body).Decode(&body); err != nil || body.Command == "" {
		http.Error(answer, `{"code":"INVALID_REQUEST_BODY","message":"command is missing"}`, http.StatusBadRequest)
		return
	}
	// The request's context: a client that leaves ends its command.
	command := exec.CommandContext(asked.Context(), "sh", "-c", body.Command)
	stdout, outErr := command.StdoutPipe()
	stderr, errErr := command.StderrPipe()
	if err := errors.Join(outErr, errErr); err != nil {
		http.Error(answer, fmt.Sprintf(`{"code":"RUNTIME_ERROR","message":%q}`, err), http.StatusInternalServerError)
		return
	}
	started := time.Now()
	if err := command.Start(); err != nil {
		http.Error(answer, fmt.Sprintf(`{"code":"RUNTIME_ERROR","message":%q}`, err), http.StatusInternalServerError)
		return
	}
	answer.Header().Set("Content-Type", "text/event-stream")
	events := &stream{to: answer}
	events.send(event{Type: "init", Text: strconv.Itoa(command.Process.Pid)})
	var readers sync.WaitGroup
	readers.Go(func() { events.sendLines("stdout", stdout) })
	readers.Go(func() { events.sendLines("stderr", stderr) })
	readers.Wait()
	if err := command.Wait(); err != nil {
		value := strconv.Itoa(command.ProcessState.ExitCode())
		events.send(event{Type: "error", Error: &failure{Name: "CommandExecError", Value: value, Traceback: []string{err.Error()}}})
		return
	}
	took := time.Since(started).Milliseconds()
	events.send(event{Type: "execution_complete", ExecutionTime: &took})
}

// stream writes events of several readers to one response, each at once.
type stream struct {
	mutex sync.Mutex
	to    http.ResponseWriter
}

func (s *stream) send(what event) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	what.Timestamp = time.Now().UnixMilli()
	line, err := json.Marshal(what)
	if err != nil {
		log.Print(err)
		return
	}
	// A client that has left is seen by the command's context.
	_, _ = s.to.Write(append(line, "\n\n"...))
	_ = http.NewResponseController(s.to).Flush()
}

func (s *stream) sendLines(kind string, from io.Reader) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.send(event{Type: kind, Text: line})
		}
		if err != nil {
			return
		}
	}
}
