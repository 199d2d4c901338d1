// Command cri calls one method of a container runtime: cri SOCKET METHOD, with the request on standard input and the response on
// standard output, both JSON.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func message(name string) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("runtime.v1." + name))
	if err != nil {
		return nil, err
	}
	return kind.New().Interface(), nil
}

func call(socket, method string) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	request, err := message(method + "Request")
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(text, request); err != nil {
		return err
	}
	response, err := message(method + "Response")
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	if err := connection.Invoke(ctx, "/runtime.v1.RuntimeService/"+method, request, response); err != nil {
		return err
	}
	answer, err := protojson.Marshal(response)
	if err == nil {
		fmt.Println(string(answer))
	}
	return err
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: cri SOCKET METHOD")
		os.Exit(2)
	}
	if err := call(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}
